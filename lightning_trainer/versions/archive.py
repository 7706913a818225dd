"""The stored weights of versions: one model folder per version, complete or absent, such as
``state_dir``/versions/POLICY/v00000012.

For a LoRA policy it is an adapter's folder, which PEFT and vLLM load on top of the model.

Next to the weights is the publication with which they were proven, so that an engine that loads them later proves them
in the same way (promise 8).
"""

import json
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning_trainer.config.policies.versions import VersionsConfig
from lightning_trainer.errors import CheckpointError, PublicationError
from lightning_trainer.serving.adapter import ADAPTER_WEIGHTS
from lightning_trainer.serving.publication import Publication
from lightning_trainer.store.upkeep.files import PUBLICATION, aside_of
from lightning_trainer.training.checkpoint_folder import whole_folder
from lightning_trainer.versions.held_out import HeldOutScore

_NAME = re.compile(r"v(\d{8,})")
_WEIGHTS = "model.safetensors"
_MODEL = "model"
"""The key in ``PUBLICATION`` for the model that the policy's configuration named."""
NAMED_TEMPLATES = "additional_chat_templates"
"""The folder of a model's further chat templates, such as the one for chats with tools (transformers)."""
_BESIDE_WEIGHTS = ("*.json", "*.jinja", f"{NAMED_TEMPLATES}/*.jinja", "*.model", "*.txt", "LICENSE", "NOTICE")


class VersionArchive:
    """The stored versions of one policy."""

    def __init__(self, root: Path, *, model_dir: Path, model: str | None = None) -> None:
        """
        Args:
            model_dir: the model's folder, whose configuration and tokenizer are copied into every version's folder, so
                that transformers and vLLM can load it.
            model: the model's name in the configuration, for users who take a version elsewhere.
        """
        self._root = root
        self._model_dir = model_dir
        self._model = model

    def folder(self, version: int) -> Path:
        """Return the folder of a version, which exists only if it is stored."""
        return version_folder(self._root, version)

    def versions(self) -> list[int]:
        """Return the stored versions, ascending."""
        return stored_versions(self._root)

    def add(self, publication: Publication) -> None:
        """Copy a published file before the next publication removes it. A version that is already stored is not written
        again, unless its weights differ: version 0 of a policy that starts over from another model.

        Raises:
            CheckpointError: the disk could not be written.
        """
        folder = self.folder(publication.version)
        if _document(folder).get("checksum") == publication.checksum:
            return
        with whole_folder(folder) as partial:
            if publication.adapter is not None:
                publication.adapter.write_config(partial, base_model=str(self._model_dir.absolute()))
            else:
                copy_beside_weights(self._model_dir, partial)
            shutil.copyfile(publication.path, partial / _weights_name(publication))
            (partial / PUBLICATION).write_text(json.dumps({**publication.to_json(), _MODEL: self._model}))

    def publication(self, version: int) -> Publication:
        """Return a stored version's publication, with the path of the stored file.

        Raises:
            PublicationError: it is not stored, or cannot be read.
        """
        folder = self.folder(version)
        try:
            document = json.loads((folder / PUBLICATION).read_text())
        except (OSError, ValueError) as error:
            raise PublicationError(f"version {version} is not stored in {self._root} ({error})") from error
        if isinstance(document, dict):
            document.pop(_MODEL, None)
        publication = Publication.from_json(document)
        return replace(publication, path=str((folder / _weights_name(publication)).absolute()))

    def copy(self, version: int, path: Path) -> Publication:
        """Copy a stored version's file to a path and return its publication with that path.

        Raises:
            PublicationError: it is not stored, cannot be read, or cannot be written.
        """
        kept = self.publication(version)
        try:
            shutil.copyfile(kept.path, path)
        except OSError as error:
            raise PublicationError(f"the kept weights of {kept.name} cannot be copied to {path}: {error}") from error
        return replace(kept, path=str(path))

    def remove(self, version: int) -> None:
        """Remove a version, if it is stored."""
        shutil.rmtree(self.folder(version), ignore_errors=True)

    def set_aside(self) -> Path | None:
        """Rename the folder if it holds a trained version, and return its new path; None if it holds none.

        Raises:
            CheckpointError: it cannot be renamed.
        """
        return set_policy_aside(self._root) if any(self.versions()) else None

    def prune(self, kept: Collection[int]) -> None:
        """Remove all versions except these, and leftovers of interrupted copies."""
        names = {self.folder(version).name for version in kept}
        for entry in self._root.iterdir() if self._root.is_dir() else ():
            if entry.is_dir() and entry.name not in names:
                shutil.rmtree(entry, ignore_errors=True)


def copy_beside_weights(model_dir: Path, folder: Path) -> None:
    """Copy everything in a model's folder except its weights: configuration, tokenizer, chat templates, license."""
    for pattern in _BESIDE_WEIGHTS:
        for file in model_dir.glob(pattern):
            if not file.name.endswith(".index.json"):  # of the initial model's own weight files
                target = folder / file.relative_to(model_dir)
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(file, target)


def _weights_name(publication: Publication) -> str:
    return _WEIGHTS if publication.adapter is None else ADAPTER_WEIGHTS


def stored_model(folder: Path) -> str | None:
    """Return the model that the configuration named when a version was stored; None if that was not recorded."""
    model = _document(folder).get(_MODEL)
    return model if isinstance(model, str) else None


def _document(folder: Path) -> Mapping[str, Any]:
    """Return what is recorded of a stored version; empty if it is not stored, or cannot be read."""
    try:
        document = json.loads((folder / PUBLICATION).read_text())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def set_policy_aside(folder: Path) -> Path:
    """Rename a policy's folder of versions or checkpoints, and return its new path.

    Raises:
        CheckpointError: it cannot be renamed.
    """
    try:
        return folder.rename(aside_of(folder))
    except OSError as error:
        raise CheckpointError(f"cannot set {folder} aside: {error}") from error


def stored_versions(root: Path) -> list[int]:
    """Return the versions whose folders are complete, ascending."""
    if not root.is_dir():
        return []
    return sorted(int(match[1]) for entry in root.iterdir() if (match := _NAME.fullmatch(entry.name)))


def version_folder(root: Path, version: int) -> Path:
    """Return the folder of a policy's version."""
    return root / f"v{version:08d}"


def archive_root(state_dir: Path, policy: str) -> Path:
    """Return the folder of a policy's stored versions."""
    return state_dir / "versions" / policy


# Retention of versions' weights: a pure rule over numbers and scores.


def kept(stored: Collection[int], scores: Mapping[int, HeldOutScore], rule: VersionsConfig, *, served: int) -> set[int]:
    """Return the stored versions to keep.

    Args:
        scores: held-out scores; a version without one is never among the best.
        served: always kept, even if a rollback made it the oldest.
    """
    newest_first = sorted(stored, reverse=True)
    stay = {served, *newest_first[: rule.keep_last]}
    if rule.keep_every is not None:
        stay |= {version for version in stored if version % rule.keep_every == 0}
    scored = [version for version in newest_first if version in scores]
    # Of equal scores the newest is kept, which was trained on more.
    stay |= set(sorted(scored, key=lambda version: scores[version].rank, reverse=True)[: rule.keep_best])
    return stay & set(stored)

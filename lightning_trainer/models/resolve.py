"""``resolve_model``: a folder, a Hugging Face id, or one of the models that need no download.

A model folder must hold a configuration, safetensors weights, and a tokenizer. An id stands for the snapshot in the
local cache, or for a download if that is allowed. The models that need no download are written once, in float32, into a
cache folder, by a separate process, so that the daemon never imports torch.
"""

import json
import logging
import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from lightning_trainer.errors import CANNOT_WRITE, FULL, ConfigError, DownloadError, MissingExtraError, ModelError

_log = logging.getLogger(__name__)

WRITERS = {
    "embedded:smollm2-135m-instruct": "lightning_trainer.models.smollm2",
    "random:tiny": "lightning_trainer.models.tiny",
    "random:tiny-moe": "lightning_trainer.models.tiny --experts",
    "random:tiny-vision": "lightning_trainer.models.tiny --vision",
}
"""By the model's name, the module that writes it, and its options: ``python -m MODULE FOLDER OPTIONS``."""
_FORMAT = 2
"""Part of the cache folder's name; increased when a writer's output changes."""
_HUB_NAME = r"\w(?:[\w.-]{0,94}\w)?"
_HUB_ID = re.compile(rf"(?!.*(?:--|\.\.|\.git$)){_HUB_NAME}/{_HUB_NAME}", re.ASCII)
"""The same rule as huggingface_hub's ``validate_repo_id``, which raises for any other id."""


def model_cache() -> Path:
    """Return the folder into which the models that need no download are written."""
    return cache_folder() / "lightning-trainer" / "models"


def cache_folder() -> Path:
    """Return the folder of this user's caches (XDG Base Directory Specification).

    Raises:
        ConfigError: this user has no home directory, and ``XDG_CACHE_HOME`` names no folder.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        raise ConfigError(
            f"user {os.getuid()} has no home directory, in which models would be cached; set HOME, or XDG_CACHE_HOME "
            "to a folder"
        ) from None


def is_hub_id(spec: str) -> bool:
    """Whether this may be the id of a model on the Hugging Face Hub (owner/name)."""
    return _HUB_ID.fullmatch(spec) is not None


def found_model(spec: str, cache_dir: Path) -> Path | None:
    """Return the folder of a model that is on this machine; None if it would have to be made or downloaded."""
    folder = _cache_folder(spec, cache_dir) if spec in WRITERS else Path(os.path.expanduser(spec))
    if folder.is_dir():
        return folder.absolute()
    cached = cached_folder(spec) if is_hub_id(spec) else None
    return cached if cached is not None and _lacks(cached) is None else None


def resolve_model(spec: str, cache_dir: Path) -> Path:
    """Return the folder of a model; one of ``WRITERS`` is written into ``cache_dir`` first if it is not there yet.

    Raises:
        ModelError: there is no such model, or it cannot be read; the message says what to do.
    """
    if spec in WRITERS:
        folder = build_once(_cache_folder(spec, cache_dir), lambda aside: _write(spec, aside))
        put_chat_template(folder)
        return folder
    if spec.startswith(("embedded:", "random:")):
        raise ModelError(f"there is no model {spec!r}; models without a download are: {', '.join(WRITERS)}")
    if (folder := Path(os.path.expanduser(spec))).is_dir():
        return check_folder(folder.absolute())
    if is_hub_id(spec):
        return check_folder(hub_folder(spec))
    raise ModelError(
        f"there is no model {spec!r}: no folder, no Hugging Face id (owner/name), none of {', '.join(WRITERS)}"
    )


def _cache_folder(spec: str, cache_dir: Path) -> Path:
    return cache_dir / f"{spec.replace(':', '-')}-{_FORMAT}"


def _write(spec: str, folder: Path) -> None:
    _log.info("writing the model %s (once)", spec)
    module, *options = WRITERS[spec].split()
    written = subprocess.run(
        [sys.executable, "-m", module, str(folder), *options],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    if written.returncode:
        last = (written.stderr.strip() or "it said nothing").splitlines()[-1]
        raise ModelError(f"the model {spec} could not be written: {last}")


CHAT_TEMPLATE_FILE = "chat_template.jinja"


def build_once(target: Path, build: Callable[[Path], None]) -> Path:
    """Return ``target``, filled by ``build`` if it did not exist. Two processes may do this at once."""
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}")
    aside.mkdir()
    try:
        build(aside)
        aside.rename(target)
    except OSError:
        # If another process was first, its folder is as good.
        if not target.is_dir():
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def chat_template() -> str:
    """Return the chat template that gives SmolLM2 its tools: the model's own leaves them out."""
    return (resources.files("lightning_trainer.models") / "chat_templates" / "smollm2_tools.jinja").read_text("utf-8")


def put_chat_template(folder: Path) -> None:
    """Put the current version of our chat template into the folder."""
    target = folder / CHAT_TEMPLATE_FILE
    text = chat_template()
    if target.is_file() and target.read_text(encoding="utf-8") == text:
        return
    aside = folder / f".{CHAT_TEMPLATE_FILE}.{os.getpid()}"
    aside.write_text(text, encoding="utf-8")
    aside.replace(target)


ADAPTER_CONFIG = "adapter_config.json"
"""In a folder that is an adapter, not a model (PEFT)."""
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
_INDEX = "model.safetensors.index.json"


def check_folder(folder: Path) -> Path:
    """Return the folder if trainer and engine can use it.

    Raises:
        ModelError: something is missing; the message names it.
    """
    try:
        json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        if (folder / ADAPTER_CONFIG).is_file():
            raise ModelError(
                f"{folder} is an adapter, not a model: give a folder in which it is added to its model's weights, as "
                "`lightning-trainer export --merge` makes of a version, and PEFT's merge_and_unload() and "
                "save_pretrained() of any other adapter"
            ) from None
        raise ModelError(f"{folder} has no config.json: it is not a model folder") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder}/config.json cannot be read: {error}") from error
    if missing := [path.name for path in weight_files(folder) if not path.is_file()]:
        raise ModelError(f"{folder} lacks the weight file {missing[0]} that its index names: copy the model again")
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise ModelError(f"{folder} has no tokenizer ({', '.join(_TOKENIZERS)}): save it there with the model")
    return folder


def weight_files(folder: Path) -> list[Path]:
    """Return the model's safetensors files, whole or in shards.

    Raises:
        ModelError: there are none.
    """
    if (whole := folder / "model.safetensors").is_file():
        return [whole]
    try:
        names = json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"].values()
    except FileNotFoundError:
        raise ModelError(f"{folder} has no model.safetensors: save the weights in safetensors format") from None
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ModelError(f"{folder}/{_INDEX} cannot be read: {error}") from error
    return [folder / name for name in sorted(set(names))]


def vocabulary_of(folder: Path) -> int | None:
    """Return how many entries the model's vocabulary has; None if its configuration does not say."""
    configuration = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    size = configuration.get("vocab_size", configuration.get("text_config", {}).get("vocab_size"))
    return size if isinstance(size, int) else None


_HUB_FILES = ["*.json", "*.jinja", "*.model", "*.txt", "LICENSE", "NOTICE", "model.safetensors"]
"""Shards are downloaded after the index, by its names: many models have a second copy of the weights under other names.
"""


def hub_folder(model_id: str) -> Path:
    """Return the snapshot's folder.

    Raises:
        ModelError: there is no such model, it needs permission, or it is not cached and cannot be fetched.
        MissingExtraError: huggingface_hub is not installed.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise MissingExtraError(
            f"the model {model_id} needs huggingface_hub: pip install 'lightning-trainer[train]'"
        ) from None
    cached = cached_folder(model_id)
    lacks = None if cached is None else _lacks(cached)
    if cached is not None and lacks is None:
        return cached
    if _offline():
        where = "not in the local Hugging Face cache" if lacks is None else f"not whole in the local cache ({lacks})"
        raise ModelError(
            f"the model {model_id} is {where} and HF_HUB_OFFLINE is set: unset it, "
            f"or run `hf download {model_id}` where there is a network and give the folder"
        )
    try:
        folder = Path(snapshot_download(model_id, allow_patterns=_HUB_FILES))
        if shards := [str(path.relative_to(folder)) for path in weight_files(folder) if not path.is_file()]:
            snapshot_download(model_id, revision=folder.name, allow_patterns=shards)
        return folder
    except ModelError:
        raise
    except Exception as error:
        if (refusal := hub_refusal(model_id, error)) is not None:
            raise refusal from None
        # requests, httpx, and the hub each raise errors of their own; all mean that the download failed.
        raise DownloadError(
            f"the model {model_id} is not {'whole ' if cached else ''}in the local cache and could not be downloaded "
            f"({type(error).__name__}): "
            f"check the network, or give a folder"
        ) from error


def hub_refusal(model_id: str, error: Exception) -> ModelError | None:
    """Return why a model cannot be downloaded from the Hugging Face Hub; None if the network may be the cause."""
    from huggingface_hub import constants, errors

    if isinstance(error, errors.GatedRepoError):
        return ModelError(f"the model {model_id} needs its owner's permission: ask for it and `hf auth login`")
    if isinstance(error, errors.RepositoryNotFoundError):
        return ModelError(f"there is no model {model_id} on the Hugging Face Hub, or it is private: check the id")
    if isinstance(error, OSError) and error.errno in CANNOT_WRITE:
        kind, way_on = (DownloadError, "make room") if error.errno in FULL else (ModelError, "make it writable")
        return kind(
            f"the model {model_id} could not be kept in the local cache: {error.filename or constants.HF_HUB_CACHE} "
            f"cannot be written: {error.strerror}; {way_on}, or set HF_HOME to another folder"
        )
    return None


def cached_folder(model_id: str) -> Path | None:
    """Return the snapshot's folder in the local cache, None if there is none; nothing is fetched.

    The folder lacks files if a download was interrupted, or if only some were asked for.
    """
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError:
        return None
    try:
        return Path(snapshot_download(model_id, allow_patterns=_HUB_FILES, local_files_only=True))
    except errors.LocalEntryNotFoundError:
        return None


def _lacks(folder: Path) -> str | None:
    """Say why the folder cannot be used; None if it can."""
    try:
        check_folder(folder)
    except ModelError as error:
        return str(error)
    return None


def _offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")

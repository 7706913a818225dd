"""Atomic folders: written under a temporary name, synced, then renamed. Checkpoints are such folders.

A checkpoint's manifest has a checksum of each of its files, so training never resumes from a damaged one.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import xxhash

from lightning_trainer.config.hardware import Device
from lightning_trainer.errors import CheckpointError, TrainingError
from lightning_trainer.serving.shared_memory import file_checksum

_MANIFEST = "trainer.json"
_FORMAT = 1
_MARK_BYTES = 2**20
_FIRST_PART = re.compile(r"model_world_size_(\d+)_rank_0\.pt")
"""A checkpoint's first part, as verl names it."""
THE_WAY_ON = (
    "begin anew with what was trained: `lightning-trainer export` (--merge for an adapter) writes it to a folder that "
    "model can name, with another name of the policy or a new [daemon] state_dir"
)
"""The advice if a configuration cannot continue from the existing checkpoints."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A checkpoint's metadata."""

    policy: str
    step: int
    weights: str = ""
    """What is trained, in words: all weights, or the adapter's shape. Older checkpoints do not say."""
    model: str = ""
    """The ``model_mark`` of the model that the run started from. Older checkpoints do not say."""
    device: str = ""
    """The kind of device it was trained on. Older checkpoints do not say."""


def model_mark(folder: Path) -> str:
    """Return what tells a model's weights from others of the same shape: a checksum of each file's size and end."""
    digest = xxhash.xxh3_128()
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        with path.open("rb") as file:
            file.seek(max(0, size - _MARK_BYTES))
            digest.update(f"{size} ".encode() + file.read())
    return digest.hexdigest()


@contextmanager
def writing(directory: Path, manifest: Manifest) -> Iterator[Path]:
    """Yield a folder to write a checkpoint into; it becomes ``directory`` when the block ends without an error.

    Raises:
        CheckpointError: the disk could not be written.
    """
    with whole_folder(directory) as partial:
        try:
            yield partial
        except RuntimeError as error:  # torch's error for a full disk
            raise CheckpointError(f"cannot write {directory}: {error}") from error
        files = {str(path.relative_to(partial)): file_checksum(path) for path in _files_in(partial)}
        (partial / _MANIFEST).write_text(json.dumps({"format": _FORMAT, **asdict(manifest), "files": files}))


@contextmanager
def whole_folder(directory: Path) -> Iterator[Path]:
    """Yield a folder to write into; it becomes ``directory``, synced, when the block ends without an error.

    An existing folder of that name is replaced.

    Raises:
        CheckpointError: the disk could not be written.
    """
    partial = directory.with_name(f".{directory.name}.{os.getpid()}.partial")
    replaced = directory.with_name(f".{directory.name}.{os.getpid()}.replaced")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        yield partial
        _sync_tree(partial)
        if directory.exists():
            os.rename(directory, replaced)
        os.rename(partial, directory)
        _sync(directory.parent)
    except OSError as error:
        raise CheckpointError(f"cannot write {directory}: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(replaced, ignore_errors=True)


def read_manifest(directory: Path) -> Manifest:
    """Return a complete checkpoint's metadata.

    Raises:
        CheckpointError: there is none, or it is damaged.
        TrainingError: another version of this program wrote it, or it cannot be read at present and may be intact.
    """
    try:
        document = json.loads((directory / _MANIFEST).read_text())
        if document.pop("format") != _FORMAT:
            raise TrainingError(f"{directory}: this checkpoint has another format than {_FORMAT}")
        for name, checksum in document.pop("files", {}).items():  # older ones have none
            if file_checksum(directory / name) != checksum:
                raise CheckpointError(f"{directory} is damaged: {name} is not as it was saved")
        # A newer release may have added fields; one that changes what the others mean has another format.
        return Manifest(**{name: document[name] for name in Manifest.__dataclass_fields__ if name in document})
    except (
        FileNotFoundError,
        NotADirectoryError,
        IsADirectoryError,
        KeyError,
        TypeError,
        AttributeError,
        json.JSONDecodeError,
        UnicodeDecodeError,
    ) as error:
        raise CheckpointError(f"{directory} is not a whole checkpoint ({error}); name one that was saved") from error
    except OSError as error:
        raise TrainingError(
            f"the checkpoint {directory} cannot be read now ({error}); it stays as it is: look at the disk or mount, "
            "and at the limit on open files"
        ) from error


def require_written_by(folder: Path, processes: int, device: Device) -> None:
    """Check that a checkpoint of FSDP2 is in as many parts as there are processes, and of their kind of device.

    Its tensors belong to a mesh of devices, and torch copies them into no other.

    Raises:
        TrainingError: it is not.
    """
    written_by = processes_of(folder)
    if written_by != processes:
        many = "another strategy" if written_by is None else f"world_size = {written_by}"
        raise _written_with(many, folder, f"world_size = {processes}")
    if (written_on := _device_of(folder)) not in ("", device):
        raise _written_with(f'device = "{written_on}"', folder, f'device = "{device}"')


def _written_with(then: str, folder: Path, now: str) -> TrainingError:
    return TrainingError(
        f"the checkpoint {folder} was written with {then} in [training], and now it is {now}; go on with what it was "
        f"written with, or {THE_WAY_ON}"
    )


def _device_of(folder: Path) -> str:
    """Return what a checkpoint was trained on; empty if it does not say, as a critic's part does not."""
    try:
        return str(json.loads((folder / _MANIFEST).read_text()).get("device", ""))
    except (OSError, AttributeError, ValueError):  # ``read_manifest`` says whether it is whole
        return ""


def processes_of(folder: Path) -> int | None:
    """Return how many processes wrote a checkpoint of FSDP2; None if it is not one."""
    found = (_FIRST_PART.fullmatch(path.name) for path in folder.glob("*.pt"))
    return next((int(match[1]) for match in found if match), None)


def _files_in(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _sync_tree(folder: Path) -> None:
    for root, _, files in os.walk(folder):
        for name in files:
            _sync(Path(root) / name)
        _sync(Path(root))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Published weights between trainer and engine: files in shared memory, at most two versions.

``/dev/shm/lightning-trainer-<run id>-<owner>/v<version>.safetensors``: both sides map the same memory. The folder is
private to the user and removed at the end, or by the next run if the process was killed.
"""

import logging
import os
import secrets
import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

import xxhash

from lightning_trainer.errors import PublicationError
from lightning_trainer.serving.ownership import owner_tag, remove_earlier, remove_orphans

_CHUNK_BYTES = 16 * 2**20


def file_checksum(path: str | Path) -> str:
    """Return a weight file's xxh3-128, 32 lower-case hex digits. It detects accidents and mix-ups, not attackers.

    Raises:
        OSError: the file cannot be read.
    """
    digest = xxhash.xxh3_128()
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


logger = logging.getLogger(__name__)

SHARED_MEMORY = Path("/dev/shm")
_PREFIX = "lightning-trainer-"
_VERSIONS_AT_ONCE = 2


class WeightFolder:
    """The folder with the versions of one policy."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, version: int) -> Path:
        """Return the path for this version's file."""
        return self.folder / f"v{version}.safetensors"

    def path_again(self, version: int) -> Path:
        """Return the path for a version that is made again while its first file may be in use."""
        return self.folder / f"again-v{version}.safetensors"


class WeightFiles(WeightFolder):
    """The weight files of one run, as a context manager: the folder exists inside it and is removed afterwards."""

    def __init__(
        self,
        state_dir: Path,
        *,
        run_id: str | None = None,
        version_bytes: int = 2**30,
        shared_memory: Path = SHARED_MEMORY,
    ) -> None:
        """Choose the location and create the folder; folders of dead runs are removed.

        Args:
            state_dir: a folder of this process alone, which may have several ``WeightFiles`` in it; used, with a
                warning, if shared memory is absent or has no room for two versions.
            version_bytes: size of one version's file.

        Raises:
            PublicationError: neither has room.
        """
        for place, remove in ((shared_memory, remove_orphans), (state_dir, remove_earlier)):
            if removed := remove(place, _PREFIX):
                logger.info("removed the weight files of %d dead runs from %s", len(removed), place)
        root = _root(shared_memory, state_dir, version_bytes * _VERSIONS_AT_ONCE)
        super().__init__(root / f"{_PREFIX}{run_id or secrets.token_hex(4)}-{owner_tag()}")
        self.folder.mkdir(mode=0o700)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def of(self, policy: str) -> WeightFolder:
        """Return a subfolder for one of several policies that share an engine."""
        folder = WeightFolder(self.folder / policy)
        folder.folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def prune(self) -> None:
        """Remove all but the two newest versions: the live one and the candidate."""
        newest_last = sorted(self.folder.glob("v*.safetensors"), key=lambda path: int(path.stem[1:]))
        for path in newest_last[:-_VERSIONS_AT_ONCE]:
            path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder and everything in it."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _root(shared_memory: Path, state_dir: Path, needed: int) -> Path:
    if not (shared_memory.is_dir() and os.access(shared_memory, os.W_OK)):
        problem = f"{shared_memory} is not there or cannot be written"
    elif (free := shutil.disk_usage(shared_memory).free) < needed:
        problem = f"{shared_memory} has {_mib(free)} free and two versions of the weights need {_mib(needed)}"
    else:
        return shared_memory
    state_dir.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(state_dir).free) < needed:
        raise PublicationError(f"{problem}, and {state_dir} has {_mib(free)} free: make room in one of them")
    logger.warning("%s: weights go through %s instead, which is slower", problem, state_dir)
    return state_dir


def _mib(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"

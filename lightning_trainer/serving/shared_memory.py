"""Where published weights lie between trainer and engine: files in shared memory, two versions at most.

``/dev/shm/lightning-trainer-<run id>-<owner>/<policy>@v<version>.safetensors``: a file there is memory that both sides
map. The folder is private to the user, removed at the end, and by the next run where the end was a kill.
"""

import logging
import os
import shutil
from collections.abc import Collection
from pathlib import Path

from lightning_trainer.errors import PublicationError
from lightning_trainer.serving.ownership import owner_tag, remove_orphans

logger = logging.getLogger(__name__)

SHARED_MEMORY = Path("/dev/shm")
_PREFIX = "lightning-trainer-"
_VERSIONS_AT_ONCE = 2


class WeightFolder:
    """The weight files of one run. ``path`` for the trainer to write to, ``keep`` once a version is live."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @classmethod
    def create(
        cls, run_id: str, state_dir: Path, bytes_per_version: int, shared_memory: Path = SHARED_MEMORY
    ) -> "WeightFolder":
        """Make the run's folder and remove those of dead runs.

        Args:
            state_dir: used, and said so, where shared memory is absent or has no room for two versions.

        Raises:
            PublicationError: there is no room in either.
        """
        for root in (shared_memory, state_dir):
            if removed := remove_orphans(root, _PREFIX):
                logger.info("removed the weights of %d dead runs from %s", len(removed), root)
        root = _root(shared_memory, state_dir, bytes_per_version * _VERSIONS_AT_ONCE)
        directory = root / f"{_PREFIX}{run_id}-{owner_tag()}"
        directory.mkdir(mode=0o700, exist_ok=True)
        return cls(directory)

    def path(self, policy: str, version: int) -> Path:
        """Return where this version's file belongs."""
        return self.directory / f"{policy}@v{version}.safetensors"

    def keep(self, paths: Collection[Path]) -> None:
        """Remove every file but these: the live version's, and the one that is being written or tried.

        Raises:
            PublicationError: more than two are to be kept.
        """
        if len(paths) > _VERSIONS_AT_ONCE:
            raise PublicationError(f"{len(paths)} weight files are to be kept; there is room for {_VERSIONS_AT_ONCE}")
        for file in self.directory.iterdir():
            if file not in paths:
                file.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder and all that is in it."""
        shutil.rmtree(self.directory, ignore_errors=True)


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

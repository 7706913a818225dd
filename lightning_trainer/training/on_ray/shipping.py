"""Files between the daemon's node and others, in chunks through Ray: no path of one disk is taken for one of another.

A trainer process on another node has a folder there, which it makes for itself and which is removed with it.
"""

import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_trainer.errors import CheckpointError, TrainingError
from lightning_trainer.serving.ownership import owner_tag, remove_orphans

_PREFIX = "lightning-node-"
_CHUNK_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A file or folder of the daemon's node, as an argument of a call: each process takes the one of its own disk."""

    path: Path
    name: str
    """Below the folder of a process on another node."""


def reference_of(policy: str) -> str:
    """The name of the policy's reference model below such a folder."""
    return f"reference/{policy}"


class NodeFolder:
    """The files of one process on another node."""

    def __init__(self) -> None:
        remove_orphans(Path(tempfile.gettempdir()), _PREFIX)
        self.root = Path(tempfile.mkdtemp(prefix=_PREFIX, suffix=f"-{owner_tag()}"))

    def write(self, name: str, offset: int, data: bytes) -> None:
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+b" if offset else "wb") as file:
            file.seek(offset)
            file.write(data)

    def read(self, name: str, offset: int) -> bytes:
        with self.path(name).open("rb") as file:
            file.seek(offset)
            return file.read(_CHUNK_BYTES)

    def files(self, name: str) -> list[str]:
        """What lies below a name, relative to it; a file is itself."""
        return [str(path.relative_to(self.path(name))) for path in _files(self.path(name))]

    def discard(self, name: str) -> None:
        path = self.path(name)
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    def remove(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def path(self, name: str) -> Path:
        """Raises TrainingError: it is not below the folder."""
        path = (self.root / name).resolve()
        if not path.is_relative_to(self.root.resolve()):
            raise TrainingError(f"{name!r} is not in the folder of this process")
        return path


Ask = Callable[..., Awaitable[Any]]
"""``await ask(method, *arguments)``: of the ``NodeFolder`` of one process."""


async def ship(path: Path, name: str, ask: Ask) -> None:
    """Write a file, or all of a folder, into the folder of a process.

    Raises:
        TrainingError: it cannot be read here, or not be written there.
    """
    await ask("discard", name)
    try:
        for file in _files(path):
            below = "" if file == path else f"/{file.relative_to(path)}"
            for offset, data in _chunks(file):
                await ask("write", f"{name}{below}", offset, data)
    except OSError as error:
        raise TrainingError(f"{path} cannot be sent to another node: {error}") from error


async def fetch(name: str, into: Path, ask: Ask) -> None:
    """Write what a process has below a name into a file or an empty folder of this node.

    Raises:
        CheckpointError: it cannot be written here.
    """
    try:
        for relative in await ask("files", name):
            path = into if relative == "." else into / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            below = name if relative == "." else f"{name}/{relative}"
            with path.open("wb") as file:
                while data := await ask("read", below, file.tell()):
                    file.write(data)
    except OSError as error:
        raise CheckpointError(f"cannot write {into}: {error}") from error


def _files(path: Path) -> Sequence[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def _chunks(file: Path) -> Iterator[tuple[int, bytes]]:
    with file.open("rb") as stream:
        offset = 0
        while (data := stream.read(_CHUNK_BYTES)) or not offset:
            yield offset, data
            if not data:
                return
            offset += len(data)

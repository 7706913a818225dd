"""File transfer between the daemon's node and others, in chunks through Ray: no shared file system is assumed.

An engine on another node has its own folder there, and the processes of a trainer share one; a folder is removed with
its processes. While one chunk is written there, the next ones are already being read and sent.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_trainer.errors import CheckpointError, TrainingError
from lightning_trainer.serving.ownership import owner_tag, remove_orphans

_PREFIX = "lightning-node-"
_CHUNK_BYTES = 32 * 2**20
_CHUNKS_AT_ONCE = 4
"""Chunks in flight at once, which is how much of a file occupies the cluster's object store."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A file or folder of the daemon's node, as an argument of a remote call: each process substitutes the copy on its
    own disk."""

    path: Path
    name: str
    """Path below the folder of a process on another node."""


class NodeFolder:
    """The files of our processes on another node."""

    def __init__(self, root: Path | None = None) -> None:
        """``root``: where they are, if not in a temporary folder."""
        if root is None:
            remove_orphans(Path(tempfile.gettempdir()), _PREFIX)
            root = Path(tempfile.mkdtemp(prefix=_PREFIX, suffix=f"-{owner_tag()}"))
        self.root = root

    def write(self, name: str, offset: int, data: bytes) -> None:
        """Write a chunk at an offset in bytes; the one at 0 creates the file, or replaces an old one."""
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+b" if offset else "wb") as file:
            file.seek(offset)
            file.write(data)

    def read(self, name: str, offset: int) -> bytes:
        """Return one chunk from an offset in bytes on; empty at the end of the file."""
        with self.path(name).open("rb") as file:
            file.seek(offset)
            return file.read(_CHUNK_BYTES)

    def files(self, name: str) -> list[str]:
        """Return the relative paths below a name; for a file, the file itself."""
        return [str(path.relative_to(self.path(name))) for path in _files(self.path(name))]

    def discard(self, name: str) -> None:
        """Remove a file or a folder, if it exists."""
        path = self.path(name)
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder with everything in it."""
        shutil.rmtree(self.root, ignore_errors=True)

    def path(self, name: str) -> Path:
        """Return the path. Raises TrainingError: it is not below the folder."""
        path = (self.root / name).resolve()
        if not path.is_relative_to(self.root.resolve()):
            raise TrainingError(f"{name!r} is not in the folder of this process")
        return path


Ask = Callable[..., Awaitable[Any]]
"""``await ask(method, *arguments)``: calls the ``NodeFolder`` of one process."""


async def ship(path: Path, name: str, ask: Ask) -> None:
    """Copy a file, or a whole folder, into the folder of a process.

    Raises:
        TrainingError: it cannot be read here, or cannot be written there.
    """
    await ask("discard", name)
    try:
        for file in _files(path):
            below = "" if file == path else f"/{file.relative_to(path)}"
            await _send(file, f"{name}{below}", ask)
    except OSError as error:
        raise TrainingError(f"{path} cannot be sent to another node: {error}") from error


async def fetch(name: str, into: Path, ask: Ask) -> None:
    """Copy a process's file or folder into a file or an empty folder on this node.

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


async def _send(file: Path, name: str, ask: Ask) -> None:
    """Send a file: the first chunk creates it; the others may arrive in any order."""
    sent: set[asyncio.Future[Any]] = set()
    try:
        for offset in range(0, max(1, file.stat().st_size), _CHUNK_BYTES):
            data = await asyncio.to_thread(_read, file, offset)
            sent.add(asyncio.ensure_future(ask("write", name, offset, data)))
            if offset == 0 or len(sent) == _CHUNKS_AT_ONCE:
                done, sent = await asyncio.wait(sent, return_when=asyncio.FIRST_COMPLETED)
                for one in done:
                    one.result()
        await asyncio.gather(*sent)
    finally:
        for one in sent:
            one.cancel()


def _read(file: Path, offset: int) -> bytes:
    with file.open("rb") as stream:
        stream.seek(offset)
        return stream.read(_CHUNK_BYTES)


def _files(path: Path) -> Sequence[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]

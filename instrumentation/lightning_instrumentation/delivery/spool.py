"""The files in which one process's spans wait for the daemon: ``kill -9`` loses none of them.

Each record is a serialized ``ExportTraceServiceRequest`` with one span, so the body of a POST is simply concatenated
records (repeated protobuf fields concatenate). Files are
``{spool_dir}/{endpoint}.{owner}/{pid}-{random}.{number}.spans``, where the owner is the daemon that they wait for;
without one they are for the first daemon at the endpoint. Files whose process has died are orphans, which any process
of the same endpoint and owner, or the daemon, may take over.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from lightning_instrumentation.delivery.memory import MOST_BYTES
from lightning_instrumentation.delivery.ownership import Ownership
from lightning_instrumentation.delivery.segment import SUFFIX, Segment, SegmentError
from lightning_instrumentation.failures import failures
from lightning_instrumentation.routing.hosts import LOOPBACK, canonical_host
from lightning_instrumentation.settings import default_spool_dir

__all__ = ["Spool", "default_spool_dir", "endpoint_folder", "orphaned_spools"]

_LOCK = ".lock"


class Spool:
    """A spool, made by ``create`` or ``take_over``; thread-safe, with one reader. A ``with`` block closes it."""

    def __init__(self, path: Path, ownership: Ownership, segments: list[Segment]) -> None:
        """``path``: the common path of all the spool's files, without their endings."""
        self.path = path
        self.owner = _owner_of(path)
        """The daemon that the spool waits for; None for the first one at its address."""
        self._ownership = ownership
        self._segments = segments
        """Oldest first, at least one; only the last one is written to."""
        self._numbered = len(segments)
        self._lock = threading.RLock()  # a finalizer may end a span in the middle of anything
        self._closed = False
        self.rows = sum(segment.rows for segment in segments)
        self.bytes = sum(segment.bytes for segment in segments)
        """Bytes of the waiting records' bodies; ``rows`` is how many there are."""
        self._drop_emptied()

    @classmethod
    def create(cls, folder: Path) -> Spool:
        """Return a new, empty spool in a folder. Raises OSError if the folder cannot be written."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        while True:
            path = folder / f"{os.getpid()}-{os.urandom(6).hex()}"
            ownership = Ownership.take(path.with_suffix(_LOCK))
            if ownership is not None:
                break
        try:
            return cls(path, ownership, [Segment.create(_segment_path(path, 0))])
        except BaseException:
            ownership.release(delete=True)
            raise

    @classmethod
    def take_over(cls, path: Path) -> Spool | None:
        """Return a spool whose owner has died; None if the owner lives, or the spool has no file or cannot be read."""
        try:
            ownership = Ownership.take(path.with_suffix(_LOCK))
        except OSError as error:  # the spool is another user's
            _note_busy(path, error)
            return None
        if ownership is None:
            return None
        segments: list[Segment] = []
        for file in sorted(path.parent.glob(f"{path.name}.*{SUFFIX}")):
            try:
                segments.append(Segment.open(file))
            except SegmentError as error:
                failures.note("spool-unreadable", f"the file {file} cannot be read and is set aside", error=error)
                os.replace(file, file.with_suffix(".unreadable"))
            except OSError as error:
                _note_busy(file, error)
                for segment in segments:
                    segment.close(delete=False)
                ownership.release()
                return None
        if segments:
            return cls(path, ownership, segments)
        ownership.release(delete=True)
        return None

    def append(self, body: bytes) -> None:
        """Write a record. Raises OSError if it could not be written."""
        with self._lock:
            segment = self._segments[-1]
            if segment.full and segment.rows:
                self._numbered += 1
                segment = Segment.create(_segment_path(self.path, self._numbered - 1))
                self._segments.append(segment)
            segment.append(body)
            self.rows += 1
            self.bytes += len(body)

    def read(self, limit: int, most_bytes: int = MOST_BYTES) -> list[bytes]:
        """Return the oldest records, at least one if there is any."""
        with self._lock:
            segment = self._segments[0]
        # Only the reader changes what was written before.
        return segment.read(limit, most_bytes) if segment.rows else []

    def forget(self, bodies: Sequence[bytes]) -> None:
        """Drop the oldest records, which ``read`` returned, because they were accepted.

        In a closed spool they stay; they are then delivered once more, which changes nothing.
        """
        with self._lock:
            if self._closed:
                return
            self._segments[0].forget(bodies)
            self.rows -= len(bodies)
            self.bytes -= sum(map(len, bodies))
            self._drop_emptied()

    def _drop_emptied(self) -> None:
        while len(self._segments) > 1 and not self._segments[0].rows:
            self._segments.pop(0).close(delete=True)

    def reject(self, body: bytes, reason: str) -> None:
        """Put the oldest record aside: it will never be accepted."""
        self.put_aside(body, reason)
        self.forget([body])

    def put_aside(self, body: bytes, reason: str) -> None:
        """Keep a record in a file that is never sent; the caller still has to ``forget`` it here."""
        line = json.dumps({"reason": reason, "request": base64.b64encode(body).decode()})
        try:
            descriptor = os.open(self.rejected_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "a") as file:
                file.write(f"{line}\n")
        except OSError as error:
            failures.note("spool-not-written", f"a refused span could not be kept in {self.rejected_path}", error=error)

    @property
    def rejected_path(self) -> Path:
        """Return the file of refused spans: a line of JSON each, with the reason and the request in base64."""
        return self.path.with_suffix(".rejected")

    def move_to(self, folder: Path) -> None:
        """Move the spool to another daemon's folder; a kill in the middle leaves each file in one of the two folders.

        Raises:
            OSError: a file cannot be moved.
        """
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._lock:
            for segment in self._segments:
                segment.move_to(folder / segment.path.name)
            self._ownership.move_to(folder / self._ownership.path.name)
            self.path = folder / self.path.name
            self.owner = _owner_of(self.path)

    def close(self) -> None:
        """Close the files and release the lock; files without waiting records are deleted."""
        with self._lock:
            self._closed = True
            for segment in self._segments:
                segment.close(delete=not segment.rows)
            self._ownership.release(delete=not self.rows)

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def hold_still(self) -> None:
        """Keep other threads from opening or writing a file while a fork copies the process."""
        self._lock.acquire()

    def go_on(self) -> None:
        """Release the lock that ``hold_still`` took, in the parent after a fork."""
        self._lock.release()

    def leave_to_parent(self) -> None:
        """Close our copies of the descriptors in a forked child; files and ownership stay the parent's."""
        for segment in self._segments:
            segment.close(delete=False)
        self._ownership.forget()


def endpoint_folder(spool_dir: Path, endpoint: str, owner: str | None = None) -> Path:
    """Return the folder of spans that wait for one daemon; all names of the loopback interface are the same address.

    Args:
        owner: the daemon; None for the first one at the address.
    """
    parts = urlsplit(endpoint)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    place = f"{canonical_host(parts.hostname or '')}:{port}{parts.path.rstrip('/')}"
    name = hashlib.sha256(place.encode()).hexdigest()[:16]
    return Path(spool_dir) / (name if owner is None else f"{name}.{owner}")


def owned_folders(spool_dir: Path, owners: Iterable[str]) -> list[Path]:
    """Return the folders of spans that wait for one of these daemons, at any address."""
    wanted = frozenset(owners)
    return sorted(folder for folder in _listed(Path(spool_dir)) if folder.name.partition(".")[2] in wanted)


def folders_of_tokens(spool_dir: Path, endpoint: str) -> list[Path]:
    """Return this user's folders of spans whose programs knew a token but never met a daemon with that token at this
    address: the token was mistyped, or has changed since.

    For loopback, return none: projects may take turns at a port there, and the token is another project's.
    """
    here = endpoint_folder(spool_dir, endpoint)
    if canonical_host(urlsplit(endpoint).hostname or "") == LOOPBACK:
        return []
    return sorted(one for one in here.parent.glob(f"{here.name}.token-*") if _is_ours(one))


def _is_ours(folder: Path) -> bool:
    return not hasattr(os, "geteuid") or folder.stat().st_uid == os.geteuid()


def orphaned_spools(
    spool_dir: Path, endpoint: str, owners: Iterable[str | None] = (None,), *, limit: int | None = None
) -> list[Spool]:
    """Take over the spools of dead processes for this endpoint and these owners; the caller empties and closes each."""
    folders = dict.fromkeys(endpoint_folder(spool_dir, endpoint, owner) for owner in owners)
    return orphans_in(folders, limit=limit)


def orphans_in(folders: Iterable[Path], *, limit: int | None = None) -> list[Spool]:
    """Take over the spools of dead processes in these folders."""
    taken: list[Spool] = []
    for path in _spools_in(folders):
        if limit is not None and len(taken) >= limit:
            break
        spool = Spool.take_over(path)
        if spool is None:
            continue
        if spool.rows:
            taken.append(spool)
        else:
            spool.close()
    return taken


def _spools_in(folders: Iterable[Path]) -> Iterator[Path]:
    for folder in folders:
        found = [path for path in _listed(folder) if path.suffix in (SUFFIX, _LOCK)]
        yield from (folder / name for name in sorted({path.name.partition(".")[0] for path in found}))


def _listed(folder: Path) -> list[Path]:
    """Return the paths in a folder; none if the folder does not exist, or this user may not read it."""
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        _note_busy(folder, error)
        return []


def _note_busy(path: Path, error: OSError) -> None:
    failures.note(
        "spool-busy", f"{path} cannot be opened now, so spans that wait there do; it is tried again later", error=error
    )


def folder_bytes(folder: Path, *, but: Path | None = None) -> int:
    """Return the bytes of all files in a folder, except those of the spool ``but``: an emptied file keeps its size, but
    has room."""
    size = 0
    for entry in os.scandir(folder) if folder.is_dir() else ():
        if but is not None and entry.name.startswith(but.name):
            continue
        try:
            size += entry.stat().st_size
        except FileNotFoundError:
            continue
    return size


def _segment_path(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number:06}{SUFFIX}")


def _owner_of(path: Path) -> str | None:
    return path.parent.name.partition(".")[2] or None

"""The journal: a second copy of every accepted span, possibly on another disk, until the next backup contains it.

A client deletes a span once it is acknowledged, so between two backups only the store has it. With a journal there are
two copies: a restored backup, the journal's spans, and what still waits in the clients' spools together are complete.
Invariant: a span is acknowledged only when it is also synced in the journal. A record is a length, a checksum, and the
spans as OTLP; a record cut off by a kill was never acknowledged.
"""

import os
import struct
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanProto

from lightning_trainer.errors import StoreError
from lightning_trainer.otlp.span_codec import (
    attributes_from_proto,
    attributes_to_proto,
    encode_span,
    received_span,
)
from lightning_trainer.types import Span

_RECORD = struct.Struct("<II")
_SEGMENT_BYTES = 64 * 2**20
_COMMITTED_NS = 120 * 10**9
"""A commit takes less than this: its group and the group before it each wait for the database's lock for at most 30 s.
"""


class Journal:
    """Segments in a folder, written one after the other; thread-safe."""

    def __init__(self, folder: Path) -> None:
        """Open the folder. Raises StoreError: it cannot be written."""
        self.folder = folder
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._size = 0
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._begin()
        except OSError as error:
            raise StoreError(f"[store] journal = {str(folder)!r} cannot be written: {error.strerror}") from error

    def append(self, spans: Sequence[Span]) -> None:
        """Write spans and return when they are synced to disk.

        Raises:
            StoreError: the spans could not be written.
        """
        body = zlib.compress(_encode(spans), level=1)
        record = _RECORD.pack(len(body), zlib.crc32(body)) + body
        with self._lock:
            try:
                if self._size >= _SEGMENT_BYTES:
                    self._begin()
                assert self._descriptor is not None
                if os.write(self._descriptor, record) != len(record):
                    raise OSError(28, "No space left on device")
                os.fdatasync(self._descriptor)
                self._size += len(record)
            except OSError as error:
                self._take_back()
                raise StoreError(f"the journal {self.folder} cannot be written ({error.strerror})") from error

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def _begin(self) -> None:
        # Named by the clock, but after all others even if the clock was set back: only the last one is being written.
        newest = max((int(one.stem) for one in _segments(self.folder) if one.stem.isdecimal()), default=0)
        name = self.folder / f"{max(time.time_ns(), newest + 1):020d}.spans"
        # If the next segment cannot be made, the one before stays open: its descriptor must not become another file's.
        begun = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        before, self._descriptor, self._size = self._descriptor, begun, 0
        if before is not None:
            os.close(before)

    def _take_back(self) -> None:
        """Remove what a failed append wrote, since records after it would not be read."""
        assert self._descriptor is not None
        try:
            os.ftruncate(self._descriptor, self._size)
        except OSError:
            self._size = _SEGMENT_BYTES  # the next record begins a segment


def delete_before(folder: Path, at_ns: int) -> int:
    """Delete the segments whose spans had all been committed by ``at_ns``; return how many."""
    segments = _segments(folder)
    # The last one may still be growing.
    over = [one for one, after in pairwise(segments) if _ended_ns(one, after, at_ns) < at_ns - _COMMITTED_NS]
    for segment in over:
        segment.unlink()
    return len(over)


def _ended_ns(segment: Path, after: Path, at_ns: int) -> int:
    """Return a time by which a segment had ended: when the next one began, or when the segment was last modified if the
    next one began after ``at_ns``, as it seems if the clock was set back."""
    began = int(after.stem)
    return began if began <= at_ns else segment.stat().st_mtime_ns


def read(folder: Path, damaged: list[str]) -> Iterator[list[Span]]:
    """Yield the spans of each record, oldest first.

    Args:
        damaged: gets a sentence for each segment that cannot be read to its end, and one if there is no segment: a
            daemon leaves at least one.
    """
    segments = _segments(folder)
    if not segments:
        state = "is empty" if folder.is_dir() else "is not there"
        damaged.append(
            f"the journal {folder} {state}, so nothing that was accepted after the backup came from it: mount or "
            "name in [store] journal what the daemon wrote, and restore again"
        )
    for segment in segments:
        with segment.open("rb") as file:
            while head := file.read(_RECORD.size):
                length, checksum = _RECORD.unpack(head) if len(head) == _RECORD.size else (0, 0)
                body = file.read(length)
                if not length or len(body) != length or zlib.crc32(body) != checksum:
                    damaged.append(f"the journal's {segment.name} ends in a record that is cut off or damaged")
                    break
                yield _decode(zlib.decompress(body))


def _segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.spans")) if folder.is_dir() else []


def _encode(spans: Sequence[Span]) -> bytes:
    request = ExportTraceServiceRequest()
    for (_, scope), alike in groupby(spans, key=lambda span: (id(span.resource), span.scope)):
        own = list(alike)
        of_resource = request.resource_spans.add()
        of_resource.resource.attributes.extend(attributes_to_proto(own[0].resource))
        of_scope = of_resource.scope_spans.add()
        of_scope.scope.name = scope
        of_scope.spans.extend(SpanProto.FromString(encode_span(span)) for span in own)
    return request.SerializeToString()


def _decode(body: bytes) -> list[Span]:
    return [
        received_span(span, scope=scope.scope.name, resource=resource)
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for resource in [attributes_from_proto(of_resource.resource.attributes)]
        for scope in of_resource.scope_spans
        for span in scope.spans
    ]

"""One file of a spool: serialized spans, one after the other. It outlives its process, however the process ends.

    file   = magic, position, number | record | record | ...
    record = length, checksum, number | body

The head gives the position and the number of the first record that was not accepted yet. A file that has been emptied
is written again from its beginning, since pages that the kernel already holds cost a tenth of new ones. Bytes behind
the last record, left by an earlier round or an interrupted write, are recognized by their number or checksum: numbers
only grow. A write returns when the kernel has the data, so ``kill -9`` loses nothing; records that survive a power cut
are checked in the same way.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

from lightning_instrumentation.failures import failures

SEGMENT_BYTES = 4 << 20
"""A file that is at least this long takes no more records, unless it is empty."""
SUFFIX = ".spans"
_MAGIC = b"LTSPANS1"
_HEAD = struct.Struct("<8sQQ")
_RECORD = struct.Struct("<IIQ")
_NUMBER = struct.Struct("<Q")
_MOST_DAMAGED = 64
"""How many damaged records in a row are skipped in search of sound ones."""


class SegmentError(ValueError):
    """The file is not a segment."""


class Segment:
    """An open segment, made by ``create`` or ``open``; safe for one reader alongside one writer only: see ``Spool``."""

    def __init__(self, path: Path, descriptor: int, position: int, number: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._first = self._end = position
        """Where the first waiting record begins, and where the next record will begin."""
        self._first_number = self._next_number = number
        self.rows = self.bytes = 0
        """Number of waiting records, and the bytes of their bodies."""

    @classmethod
    def create(cls, path: Path) -> Segment:
        """Return a new, empty segment. Raises OSError if it cannot be written."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)  # private to the user
        segment = cls(path, descriptor, _HEAD.size, 1)
        try:
            segment._mark(_HEAD.size, 1)
        except BaseException:
            segment.close(delete=True)
            raise
        return segment

    @classmethod
    def open(cls, path: Path) -> Segment:
        """Open a file that another process has left, and find its waiting records.

        Raises:
            SegmentError: the file is not a segment.
            OSError: the file cannot be read.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            head = os.pread(descriptor, _HEAD.size, 0)
            magic, position, number = _HEAD.unpack(head) if len(head) == _HEAD.size else (head, 0, 0)
            if size == 0:  # its owner died before it wrote the head
                position, number = _HEAD.size, 1
            elif magic != _MAGIC or not _HEAD.size <= position <= size:
                raise SegmentError(f"{path} does not begin as a file of spans does")
            segment = cls(path, descriptor, position, number)
            segment._find_records()
            behind = segment._behind_damage(size)
        except BaseException:
            os.close(descriptor)
            raise
        return segment._without_damage(behind) if behind else segment

    @property
    def full(self) -> bool:
        """Whether the file is too long to take more records, unless it is empty."""
        return self._end >= SEGMENT_BYTES

    def append(self, body: bytes) -> None:
        """Write a record at the end. Raises OSError if it could not be written; nothing has changed then.

        Once the number is taken, no object is created that the garbage collector counts: a collection could run a
        finalizer that ends another span in the middle of this write.
        """
        checksum = zlib.crc32(body)
        record = _RECORD.pack(len(body), checksum, self._next_number) + body
        written = os.pwrite(self._descriptor, record, self._end)
        while written < len(record):
            written += os.pwrite(self._descriptor, record[written:], self._end + written)
        self._end += written
        self._next_number += 1
        self.rows += 1
        self.bytes += len(body)

    def read(self, limit: int, most_bytes: int) -> list[bytes]:
        """Return the oldest waiting bodies: at least one if any waits, even if it is longer than ``most_bytes``."""
        rows, size = self.rows, self.bytes
        data = os.pread(self._descriptor, min(size, most_bytes) + min(limit, rows) * _RECORD.size, self._first)
        bodies: list[bytes] = []
        at, left = 0, most_bytes
        while len(bodies) < min(limit, rows):
            length, _, _ = _RECORD.unpack_from(data, at)
            at += _RECORD.size
            left -= length
            if left < 0:
                # A body that alone exceeds the limit is returned by itself.
                return bodies or [os.pread(self._descriptor, length, self._first + at)]
            bodies.append(data[at : at + length])
            at += length
        return bodies

    def forget(self, bodies: Sequence[bytes]) -> None:
        """Drop the oldest records, whose bodies ``read`` returned."""
        size = sum(map(len, bodies))
        self._first += size + len(bodies) * _RECORD.size
        self._first_number += len(bodies)
        self.rows -= len(bodies)
        self.bytes -= size
        position = self._first if self.rows else _HEAD.size
        try:
            self._mark(position, self._first_number)
        except OSError as error:
            # Without the mark, new records at the beginning would not be found, so they go behind the last one.
            failures.note(
                "spool-not-written",
                f"the spool {self.path} cannot be written, so spans that are delivered stay in it; the next process "
                "may deliver them once more, which changes nothing",
                error=error,
            )
            return
        if not self.rows:
            if self.full:
                os.ftruncate(self._descriptor, _HEAD.size)
            self._first = self._end = position

    def move_to(self, path: Path) -> None:
        """Rename the file. Raises OSError if it cannot be moved."""
        os.rename(self.path, path)
        self.path = path

    def close(self, *, delete: bool) -> None:
        """Close the file. Reading or writing it later raises OSError, instead of reaching another file that has since
        been given the same descriptor."""
        os.close(self._descriptor)
        self._descriptor = -1
        if delete:
            self.path.unlink(missing_ok=True)

    def _mark(self, position: int, number: int) -> None:
        os.pwrite(self._descriptor, _HEAD.pack(_MAGIC, position, number), 0)

    def _find_records(self) -> None:
        while (body := self._record_at_end()) is not None:
            self._end += _RECORD.size + len(body)
            self._next_number += 1
            self.rows += 1
            self.bytes += len(body)

    def _record_at_end(self) -> bytes | None:
        head = os.pread(self._descriptor, _RECORD.size, self._end)
        if len(head) < _RECORD.size:
            return None
        length, checksum, number = _RECORD.unpack(head)
        if number != self._next_number:
            return None
        body = os.pread(self._descriptor, length, self._end + _RECORD.size)
        return body if len(body) == length and zlib.crc32(body) == checksum else None

    def _behind_damage(self, size: int) -> list[bytes]:
        """Return the bodies of sound records behind a damaged one; none if the last write was merely interrupted."""
        rest = os.pread(self._descriptor, max(0, size - self._end), self._end)
        bodies: list[bytes] = []
        at, number = 0, self._next_number
        while number <= self._next_number + len(bodies) + _MOST_DAMAGED:
            found = rest.find(_NUMBER.pack(number), at)
            while found >= 0:
                start = found - (_RECORD.size - _NUMBER.size)
                body = _record(rest, start) if start >= at else None
                if body is not None:
                    bodies.append(body)
                    at = start + _RECORD.size + len(body)
                    break
                found = rest.find(_NUMBER.pack(number), found + 1)  # that one was inside a body
            number += 1
        return bodies

    def _without_damage(self, behind: Sequence[bytes]) -> Segment:
        """Replace the file by one with only the sound records, and report what was lost.

        Raises:
            OSError: the new file cannot be written; this one is unchanged.
        """
        sound = self.read(self.rows, self.bytes) if self.rows else []
        mended = self.path.with_suffix(".mended")
        mended.unlink(missing_ok=True)
        segment = Segment.create(mended)
        for body in (*sound, *behind):
            segment.append(body)
        os.replace(mended, self.path)
        segment.path = self.path
        os.close(self._descriptor)
        failures.note(
            "spool-damaged",
            f"a record of the spool {self.path} is damaged and lost; the {len(sound) + len(behind)} others are "
            "delivered",
        )
        return segment


def _record(data: bytes, start: int) -> bytes | None:
    """Return the body of the record that begins at ``start``; None if the record is damaged."""
    length, checksum, _ = _RECORD.unpack_from(data, start)
    body = data[start + _RECORD.size : start + _RECORD.size + length]
    return body if len(body) == length and zlib.crc32(body) == checksum else None

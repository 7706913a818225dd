"""Where spans come from: a file of OTLP JSON lines, plain or gzip, or a daemon's store. The first bytes say which."""

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from lightning_trainer.dataset.formats.otlp_lines import read_lines
from lightning_trainer.errors import MalformedTelemetryError
from lightning_trainer.store.scan import read_only, traces
from lightning_trainer.types import Span

STORE_FILE = "lightning.sqlite"
_SQLITE = b"SQLite format 3\0"
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"


def read_source(
    path: Path, problems: list[str], watch: Callable[[BinaryIO], BinaryIO] = lambda file: file
) -> list[Span]:
    """Return the spans of a file, or of the store in a daemon's folder.

    Args:
        problems: gets one sentence for everything that is left out.
        watch: gets the opened file and returns a file to read in its place (to show progress).

    Raises:
        MalformedTelemetryError: the source cannot be opened, or is neither.
        StoreError: it is a store that cannot be read.
    """
    if path.is_dir():
        path = path / STORE_FILE
    try:
        with path.open("rb") as file:
            head = file.read(len(_SQLITE))
            if head != _SQLITE:
                file.seek(0)
                return list(_read_file(watch(file), head, path.name, problems))
    except OSError as error:
        raise MalformedTelemetryError(f"cannot read the spans in {path}: {error.strerror or error}") from error
    with read_only(path) as connection:
        return [span for trace in traces(connection) for span in trace]


def is_store(path: Path) -> bool:
    """Whether a file is a store, whatever its name.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def _read_file(file: BinaryIO, head: bytes, name: str, problems: list[str]) -> Iterator[Span]:
    if head.startswith(_ZSTD):
        raise MalformedTelemetryError(
            f"{name} is compressed with zstd, where the collector writes frames and not lines: leave `compression` out "
            "of the file exporter's configuration"
        )
    if head.startswith(_GZIP):
        return read_lines(_inflated(file, name, problems), name, problems)
    return read_lines(file, name, problems)


def _inflated(file: BinaryIO, name: str, problems: list[str]) -> Iterable[bytes]:
    with gzip.open(file) as lines:
        try:
            yield from lines
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            problems.append(f"{name}: the gzip stream breaks off ({error}); what came before is read")

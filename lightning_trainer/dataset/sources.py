"""The sources of spans: a file of OTLP JSON lines, plain or gzip, or a daemon's store. The first bytes tell which."""

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from lightning_trainer.errors import MalformedTelemetryError
from lightning_trainer.ingest.normalizing import normalize_spans
from lightning_trainer.otlp.json_lines import read_file
from lightning_trainer.store.scan import read_only, traces
from lightning_trainer.types import Span

STORE_FILE = "lightning.sqlite"
_SQLITE = b"SQLite format 3\0"


def read_source(
    path: Path, problems: list[str], watch: Callable[[BinaryIO], BinaryIO] = lambda file: file
) -> list[Span]:
    """Return the spans of a file, or of the store in a daemon's folder.

    Args:
        problems: gets one sentence for everything that is left out.
        watch: gets the opened file and returns a file to read in its place (to show progress).

    Raises:
        MalformedTelemetryError: the source cannot be opened, or is neither of these.
        StoreError: it is a store that cannot be read.
    """
    if path.is_dir():
        path = path / STORE_FILE
    try:
        with path.open("rb") as file:
            head = file.read(len(_SQLITE))
            if head != _SQLITE:
                file.seek(0)
                return normalize_spans(list(read_file(watch(file), head, path.name, problems)))
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

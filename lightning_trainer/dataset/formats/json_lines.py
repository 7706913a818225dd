"""Datasets as plain JSON lines: one row per line, each with the name and version of its schema; bytes as base64."""

from base64 import b64encode
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson

from lightning_trainer.dataset.atomic import replacing
from lightning_trainer.dataset.rows import SAMPLES, Row, sample_of
from lightning_trainer.errors import DatasetError
from lightning_trainer.types import Sample

_SCHEMA = "schema"


def write_json_lines(rows: Iterable[Row], path: Path, schema: str | None = None) -> None:
    """Write rows.

    Args:
        schema: name and version that every row carries; None for forms whose columns someone else defines.

    Raises:
        DatasetError: the file cannot be written.
    """
    head = {} if schema is None else {_SCHEMA: schema}
    with replacing(path) as aside, aside.open("wb") as file:
        for row in rows:
            file.write(orjson.dumps({**head, **row}, default=_text, option=orjson.OPT_APPEND_NEWLINE))


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file; raises like :func:`read_placed_json_lines`."""
    return (row for _, row in read_placed_json_lines(path))


def read_placed_json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a file, each with its place in words: file and line.

    Raises:
        DatasetError: the file cannot be read, or a line is not a JSON object; the message names the line.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    where = f"{path.name}: line {number}"
                    yield where, _object(line, where)
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror or error}") from error


def read_samples_json_lines(path: Path) -> tuple[Sample, ...]:
    """Read samples that :func:`write_json_lines` wrote.

    Raises:
        DatasetError: the file cannot be read, or has another schema.
    """
    samples = []
    for row in read_json_lines(path):
        if row.get(_SCHEMA) != SAMPLES:
            raise DatasetError(
                f"{path}: a row has the schema {row.get(_SCHEMA)!r}, this lightning-trainer reads {SAMPLES}"
            )
        samples.append(sample_of(row))
    return tuple(samples)


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    raise TypeError(type(value))


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise DatasetError(f"{where} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise DatasetError(f"{where} is a JSON {type(found).__name__}, not an object")
    return found

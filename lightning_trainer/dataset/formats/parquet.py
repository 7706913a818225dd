"""Datasets as Parquet: a fixed schema, whose name and version are in the file's metadata, together with the ledger.

Words (messages, tools) are columns of JSON text, since no two requests have the same shape. Log-probabilities and
advantages are 32-bit floats, as spans carry them and as trainers compute; credits and rewards are 64-bit.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from lightning_trainer import __version__
from lightning_trainer.dataset.atomic import replacing
from lightning_trainer.dataset.rows import EXAMPLES, PAIRS, SAMPLES, Row, sample_of
from lightning_trainer.errors import DatasetError, MissingExtraError
from lightning_trainer.types import LedgerRow, Sample

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ModuleNotFoundError as error:
    raise MissingExtraError(
        'Parquet needs pyarrow; run: pip install "lightning-trainer[dataset]", or write --format jsonl'
    ) from error

_ROWS_AT_ONCE = 1024
_SCHEMA_KEY, _VERSION_KEY, _LEDGER_KEY = (
    b"lightning_trainer.schema",
    b"lightning_trainer.version",
    b"lightning_trainer.ledger",
)
_JSON_COLUMNS = frozenset({"prompt", "answer", "tools", "chosen_answer", "rejected_answer"})

_text, _ids = pa.string(), pa.list_(pa.int32())
_BIAS = pa.struct([pa.field("token_id", pa.int32(), nullable=False), pa.field("bias", pa.float64(), nullable=False)])
_SHAPING = pa.struct(
    [
        pa.field("logit_bias", pa.list_(_BIAS), nullable=False),
        pa.field("presence_penalty", pa.float64(), nullable=False),
        pa.field("frequency_penalty", pa.float64(), nullable=False),
        pa.field("repetition_penalty", pa.float64(), nullable=False),
    ]
)
_SEGMENT = pa.struct(
    [
        pa.field("start", pa.int32(), nullable=False),
        pa.field("end", pa.int32(), nullable=False),
        pa.field("transition_id", _text, nullable=False),
        pa.field("policy_version", pa.int64()),
        pa.field("credit", pa.float64()),
        pa.field("row_id", _text, nullable=False),
        pa.field("peers", _text, nullable=False),
        pa.field("agent", _text),
        pa.field("attempt_id", _text),
        pa.field("follows", _text),
        pa.field("shaping", _SHAPING),
        pa.field("support", pa.binary()),
        pa.field("routed_experts", pa.binary()),
    ]
)
_MEDIA = pa.struct(
    [
        pa.field("modality", _text, nullable=False),
        pa.field("uri", _text, nullable=False),
        pa.field("mime_type", _text),
    ]
)
_EXAMPLE_SIDE = (("call_id", _text, False), ("reward", pa.float64(), True), ("fidelity", _text, False))


def _schema(*columns: tuple[str, Any, bool]) -> Any:
    return pa.schema([pa.field(name, kind, nullable=nullable) for name, kind, nullable in columns])


SCHEMAS = {
    SAMPLES: _schema(
        ("sample_id", _text, False),
        ("policy", _text, False),
        ("agent", _text, False),
        ("group_id", _text, False),
        ("attempt_id", _text, False),
        ("token_ids", _ids, False),
        ("loss_mask", pa.list_(pa.int8()), False),
        ("behaviour_logprobs", pa.list_(pa.float32()), False),
        ("advantages", pa.list_(pa.float32()), True),
        ("temperature", pa.float64(), False),
        ("segments", pa.list_(_SEGMENT), False),
        ("media", pa.list_(_MEDIA), False),
        ("baseline", pa.float64(), True),
    ),
    EXAMPLES: _schema(
        ("call_id", _text, False),
        ("agent", _text, False),
        ("attempt_id", _text, True),
        ("group_id", _text, True),
        ("fidelity", _text, False),
        ("model", _text, True),
        ("reward", pa.float64(), True),
        ("prompt", _text, True),
        ("answer", _text, True),
        ("tools", _text, False),
        ("prompt_ids", _ids, True),
        ("response_ids", _ids, True),
        ("truncated", pa.bool_(), True),
    ),
    PAIRS: _schema(
        ("agent", _text, False),
        ("group_id", _text, True),
        ("prompt", _text, True),
        ("tools", _text, False),
        ("prompt_ids", _ids, True),
        *(
            (f"{side}_{name}", kind, nullable)
            for side in ("chosen", "rejected")
            for name, kind, nullable in (
                *_EXAMPLE_SIDE,
                ("answer", _text, True),
                ("ids", _ids, True),
                ("truncated", pa.bool_(), True),
            )
        ),
    ),
}
"""Schemas by name and version; docs/build.md says what each column is."""


def write_parquet(rows: Sequence[Row], path: Path, schema: str, ledger: Sequence[LedgerRow]) -> None:
    """Write rows of one schema.

    Raises:
        DatasetError: the file cannot be written.
    """
    metadata = {
        _SCHEMA_KEY: schema.encode(),
        _VERSION_KEY: __version__.encode(),
        _LEDGER_KEY: orjson.dumps([dataclasses.asdict(row) for row in ledger]),
    }
    columns = SCHEMAS[schema].with_metadata(metadata)
    waiting = iter(rows)
    with replacing(path) as aside, pq.ParquetWriter(aside, columns, compression="zstd") as writer:
        while some := list(islice(waiting, _ROWS_AT_ONCE)):
            writer.write_table(pa.Table.from_pylist([_writable(row) for row in some], schema=columns))


def write_conversations_parquet(rows: Sequence[Row], path: Path) -> None:
    """Write rows of chat messages with the types of their values, as verl reads them.

    Raises:
        DatasetError: the file cannot be written, or objects that chat templates write as JSON would get the fields of
            other objects.
    """
    names = {name: None for row in rows for name in row}
    try:
        table = pa.table({name: [row.get(name) for row in rows] for name in names})
        if [*_written_as_json(table.to_pylist())] != [*_written_as_json(rows)]:
            raise pa.ArrowInvalid("tools, or the arguments of their calls, differ in their fields")
        with replacing(path) as aside:
            pq.write_table(table, aside, compression="zstd")
    except pa.ArrowException as error:
        raise DatasetError(
            f"in Parquet every object has the fields of all, and these conversations have other ones ({error}): write "
            "--format messages to a *.jsonl"
        ) from error


def _written_as_json(rows: Iterable[Row]) -> Iterator[Any]:
    for row in rows:
        yield row.get("tools")
        for message in (one for name in ("messages", "chosen", "rejected") for one in row.get(name) or ()):
            yield [call["function"] for call in message.get("tool_calls") or ()]


def read_samples_parquet(path: Path) -> tuple[Sample, ...]:
    """Read the samples of a file that :func:`write_parquet` wrote.

    Raises:
        DatasetError: the file cannot be read, or has another schema.
    """
    return tuple(map(sample_of, read_rows_parquet(path, SAMPLES)))


def read_rows_parquet(path: Path, schema: str, *, foreign: bool = False) -> Iterator[Row]:
    """Yield the rows of a file that :func:`write_parquet` wrote, with words parsed to messages.

    Args:
        foreign: also read files of other programs, which name no schema; nulls in them are left out, since every row,
            message and tool call there has the fields of all.

    Raises:
        DatasetError: the file cannot be read, or has another schema.
    """
    try:
        with pq.ParquetFile(path) as file:
            found = (file.schema_arrow.metadata or {}).get(_SCHEMA_KEY)
            if found != schema.encode() and not (foreign and found is None):
                named = (found or b"(none)").decode()
                raise DatasetError(f"{path} has the schema {named}, and what is read here is {schema}")
            readable = _without_nulls if found is None else _readable
            for batch in file.iter_batches(_ROWS_AT_ONCE):
                yield from map(readable, batch.to_pylist())
    except (OSError, pa.ArrowException) as error:
        raise DatasetError(f"cannot read {path} as Parquet: {error}") from error


def read_ledger(path: Path) -> tuple[LedgerRow, ...]:
    """Read a file's ledger: the account of what is and is not in it.

    Raises:
        DatasetError: the file cannot be read, or has no ledger.
    """
    try:
        written = (pq.read_schema(path).metadata or {})[_LEDGER_KEY]
    except (OSError, pa.ArrowException, KeyError) as error:
        raise DatasetError(f"{path} does not hold a ledger: {error}") from error
    return tuple(LedgerRow(**row) for row in orjson.loads(written))


def _readable(row: Row) -> Row:
    return {
        name: orjson.loads(value) if name in _JSON_COLUMNS and value is not None else value
        for name, value in row.items()
    }


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(one) for name, one in value.items() if one is not None}
    return list(map(_without_nulls, value)) if isinstance(value, list) else value


def _writable(row: Row) -> Row:
    return {
        name: orjson.dumps(value).decode() if name in _JSON_COLUMNS and value is not None else value
        for name, value in row.items()
    }

"""What was forgotten: a hash of each source, rollout, trace and response, and until when what names it is refused.

So redelivery brings nothing back, and nothing readable is kept of what was erased. What is said later is new.
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from enum import Enum

from lightning_instrumentation import semconv

from lightning_trainer.store.connection import Connection
from lightning_trainer.types import Span


class Named(Enum):
    """What a hash is of; the value tells equal names of two kinds apart."""

    SOURCE = b""
    ROLLOUT = b"rollout"
    TRACE = b"trace"
    RESPONSE = b"response"


_NAMES = (
    (semconv.ROLLOUT_ID, Named.ROLLOUT),
    (semconv.ATTEMPT_ID, Named.ROLLOUT),
    (semconv.RESPONSE_ID, Named.RESPONSE),
    (semconv.FEEDBACK_TRACE, Named.TRACE),
)


def mark(connection: Connection, kind: Named, names: Collection[str], until_ns: int) -> None:
    """From now on refuse what names these and ended by then."""
    connection.executemany(
        "INSERT INTO forgotten VALUES (?, ?) ON CONFLICT(source) DO UPDATE SET until_ns = excluded.until_ns",
        [(_hashed(kind, name), until_ns) for name in sorted(names)],
    )


def without(connection: Connection, spans: Sequence[Span]) -> Sequence[Span]:
    """Return the spans without those that were forgotten."""
    names = [list(_names(span)) for span in spans]
    hashes = {name: _hashed(*name) for of_span in names for name in of_span}
    if not hashes:
        return spans
    rows = connection.execute(
        "SELECT source, until_ns FROM forgotten WHERE source IN (SELECT value FROM json_each(?))",
        (json.dumps(list(hashes.values())),),
    )
    until = dict(rows.fetchall())
    if not until:
        return spans
    return [
        span
        for span, of_span in zip(spans, names, strict=True)
        if all(span.end_ns > until.get(hashes[name], -1) for name in of_span)
    ]


def change_mark(connection: Connection) -> int:
    """Return a number that changes when something is forgotten, whichever daemon's clock said when."""
    return connection.execute("SELECT coalesce(sum(until_ns & 2147483647), 0) FROM forgotten").fetchone()[0]


def _names(span: Span) -> Iterator[tuple[Named, str]]:
    """Yield what a span may be refused by; a span of an attempt is refused by that alone (``expired``)."""
    source = span.attributes.get(semconv.FEEDBACK_SOURCE)
    if isinstance(source, str):
        yield Named.SOURCE, source
    elif semconv.ATTEMPT_ID in span.attributes:
        return
    yield Named.TRACE, span.trace_id
    for name, kind in _NAMES:
        if isinstance(value := span.attributes.get(name), str):
            yield kind, value


def _hashed(kind: Named, name: str) -> str:
    return hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=16, person=kind.value).hexdigest()

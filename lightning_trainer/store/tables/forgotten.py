"""What was forgotten: a hash of each source, rollout, trace, and response, and the time up to which spans that name it
are refused.

So redelivery brings nothing back, and nothing readable is kept of what was erased. Later spans count as new.
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from enum import Enum

from lightning_instrumentation import semconv

from lightning_trainer.store.connection import Connection
from lightning_trainer.types import Span, SpanEvent


class Named(Enum):
    """The kind of name that is hashed; its value is part of the hash, so that equal names of two kinds differ."""

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
    """Refuse, from now on, every span that names one of these and ended by ``until_ns``."""
    connection.executemany(
        "INSERT INTO forgotten VALUES (?, ?) ON CONFLICT(source) DO UPDATE SET until_ns = excluded.until_ns",
        [(_hashed(kind, name), until_ns) for name in sorted(names)],
    )


def without(connection: Connection, spans: Sequence[Span]) -> Sequence[Span]:
    """Return the spans that were not forgotten, without the forgotten feedback that they carry as events."""
    names = [list(_names(span)) for span in spans]
    carried = {(Named.SOURCE, source) for span in spans for event in span.events if (source := _source(event))}
    hashes = {name: _hashed(*name) for name in carried.union(*names)}
    if not hashes:
        return spans
    rows = connection.execute(
        "SELECT source, until_ns FROM forgotten WHERE source IN (SELECT value FROM json_each(?))",
        (json.dumps(list(hashes.values())),),
    )
    until = dict(rows.fetchall())
    if not until:
        return spans
    until_of = {name: until.get(hashed, -1) for name, hashed in hashes.items()}
    left = []
    for span, of_span in zip(spans, names, strict=True):
        if all(span.end_ns > until_of[name] for name in of_span):
            events = tuple(
                event
                for event in span.events
                if (source := _source(event)) is None or event.time_ns > until_of[Named.SOURCE, source]
            )
            if len(events) == len(span.events):
                left.append(span)
            elif not span.name.startswith("evaluate "):
                left.append(replace(span, events=events))
    return left


def change_mark(connection: Connection) -> int:
    """Return a number that changes when something is forgotten, whichever daemon's clock gave the time."""
    return connection.execute("SELECT coalesce(sum(until_ns & 2147483647), 0) FROM forgotten").fetchone()[0]


def _names(span: Span) -> Iterator[tuple[Named, str]]:
    """Yield the names by which a span may be refused; unless it is feedback, a span of an attempt is refused only by
    the attempt (``expired``)."""
    source = span.attributes.get(semconv.FEEDBACK_SOURCE)
    if isinstance(source, str):
        yield Named.SOURCE, source
    elif semconv.ATTEMPT_ID in span.attributes:
        return
    yield Named.TRACE, span.trace_id
    for name, kind in _NAMES:
        if isinstance(value := span.attributes.get(name), str):
            yield kind, value


def _source(event: SpanEvent) -> str | None:
    """Return the source of the feedback that an event carries; None if it carries none."""
    source = event.attributes.get(semconv.FEEDBACK_SOURCE)
    return source if isinstance(source, str) and source else None


def _hashed(kind: Named, name: str) -> str:
    return hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=16, person=kind.value).hexdigest()

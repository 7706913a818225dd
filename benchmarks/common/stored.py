"""What has arrived in a daemon's store, read from its file while the daemon runs or after it has died."""

import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lightning_trainer.otlp.span_codec import decode_resource, decode_span
from lightning_trainer.types import Span


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)
    try:
        yield connection
    finally:
        connection.close()


def count(path: Path) -> int:
    """Return the number of spans; 0 if there is no store yet."""
    try:
        with _reading(path) as connection:
            return connection.execute("SELECT count(*) FROM spans").fetchone()[0]
    except sqlite3.OperationalError:
        return 0


def names(path: Path, column: str = "name") -> Counter[str]:
    """Return how often each span name (or value of another column) is in the store."""
    with _reading(path) as connection:
        query = f"SELECT {column}, count(*) FROM spans WHERE {column} IS NOT NULL GROUP BY 1"
        return Counter(dict(connection.execute(query).fetchall()))


def spans(path: Path) -> list[Span]:
    with _reading(path) as connection:
        query = "SELECT spans.body, scope, resources.body FROM spans JOIN resources ON resources.id = resource_id"
        return [
            decode_span(body, scope=scope, resource=decode_resource(resource))
            for body, scope, resource in connection.execute(query)
        ]


def wait_for(path: Path, wanted: int, *, quiet_s: float) -> int:
    """Wait until ``wanted`` spans are stored, or none has come for ``quiet_s`` seconds; return how many there are."""
    found, changed = count(path), time.monotonic()
    while found < wanted and time.monotonic() - changed < quiet_s:
        time.sleep(0.05)
        now = count(path)
        if now != found:
            found, changed = now, time.monotonic()
    return found

"""Spans per CPU-second of the daemon, from the socket to the commit, and whether its memory stays constant.

In the same run and on the same bodies, the parts are measured alone: inflating, parsing, and writing the rows.
"""

import http.client
import itertools
import sqlite3
import time
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.capture.sizes import Sizes
from benchmarks.common import stored
from benchmarks.common.payload import PROMPT, SAMPLED, Bodies
from benchmarks.common.processes import Child
from benchmarks.common.rows import Row, at_least, at_most
from benchmarks.common.servers.daemon import STORE

SECTION = "ingest"
_CONNECTIONS = 4
_REFERENCE_SPANS = 4096
_FIFTHS = 5


def run(sizes: Sizes, folder: Path) -> list[Row]:
    bodies = Bodies()
    with Child(
        "common.servers.daemon",
        *("--folder", folder),
        environment={"LIGHTNING_SPOOL_DIR": str(folder / "spool")},
        errors=folder / "daemon.log",
    ) as daemon:
        url = daemon.read()["url"]
        rss = _Memory(daemon)
        began_cpu_s, began_s = daemon.cpu_s(), time.monotonic()
        sent = _send(url, bodies, sizes.ingest_spans, rss)
        cpu_s, wall_s = daemon.cpu_s() - began_cpu_s, time.monotonic() - began_s
        peak_mib = daemon.peak_mib()
        daemon.stop()
    found = stored.count(folder / STORE)
    note = f"{bodies.span_bytes:,} bytes a span, {PROMPT} + {SAMPLED} ids; {sent / wall_s:,.0f} a second of wall time"
    rate = sent / cpu_s if cpu_s else None
    rows = [
        at_least(SECTION, "spans per CPU-second to the commit", rate, 8000, "spans/CPU-s", note),
        at_most(SECTION, "spans sent and not stored", sent - found, 0, f"of {sent:,}"),
        at_most(SECTION, "memory in the last fifth, over the second", rss.growth, 1.1, "ratio", rss.said()),
        Row(SECTION, "peak memory of the daemon", peak_mib, "MiB"),
    ]
    return rows + _references(bodies, min(sizes.ingest_spans, _REFERENCE_SPANS), folder)


class _Memory:
    """Resident memory: the most in each fifth of the run, of which the first warms up.

    The most, because a single look depends on how many requests are being stored at that moment: looks at a daemon
    whose peak was the same in every fifth saw between 99 and 121 MiB.
    """

    def __init__(self, daemon: Child) -> None:
        self._daemon = daemon
        self._most_mib = [0.0] * _FIFTHS

    def look(self, done: float) -> None:
        fifth = min(int(done * _FIFTHS), _FIFTHS - 1)
        self._most_mib[fifth] = max(self._most_mib[fifth], self._daemon.rss_mib())

    @property
    def growth(self) -> float:
        warm_mib = next(mib for mib in self._most_mib[1:] if mib)  # a small run may have no look in each fifth
        return self._most_mib[-1] / warm_mib

    def said(self) -> str:
        return "the most in each fifth: " + ", ".join(f"{mib:.0f}" for mib in self._most_mib) + " MiB"


def _send(url: str, bodies: Bodies, spans: int, memory: _Memory) -> int:
    """Send over a few connections in turns: the next body is made while the daemon stores the last ones."""
    place = urlsplit(url)
    connections = [
        http.client.HTTPConnection(place.hostname or "", place.port, timeout=120) for _ in range(_CONNECTIONS)
    ]
    waiting: list[tuple[http.client.HTTPConnection, int]] = []
    headers = {"content-type": "application/x-protobuf", "content-encoding": "gzip"}
    sent = 0

    def settle() -> int:
        connection, count = waiting.pop(0)
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise RuntimeError(f"the daemon answered {answer.status} to spans")
        return count

    for connection, (count, body) in zip(itertools.cycle(connections), bodies.requests(spans), strict=False):
        if len(waiting) == len(connections):
            sent += settle()
            memory.look(sent / spans)
        connection.request("POST", "/v1/traces", body, headers)
        waiting.append((connection, count))
    while waiting:
        sent += settle()
        memory.look(sent / spans)
    for connection in connections:
        connection.close()
    return sent


def _references(bodies: Bodies, spans: int, folder: Path) -> list[Row]:
    """Measure the least that any receiver spends on the same bodies."""
    import gzip

    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    packed = [body for _, body in bodies.requests(spans)]
    raw = [gzip.decompress(body) for body in packed]
    spanned = [bodies.span(number) for number in range(spans)]
    database = sqlite3.connect(folder / "reference.sqlite", isolation_level=None)
    database.executescript(
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
        "CREATE TABLE spans (number INTEGER PRIMARY KEY, body BLOB NOT NULL)"
    )

    def write() -> None:
        for first in range(0, spans, 512):
            database.execute("BEGIN")
            database.executemany("INSERT INTO spans VALUES (?, ?)", list(enumerate(spanned))[first : first + 512])
            database.execute("COMMIT")

    parts = {
        "inflating alone": lambda: [gzip.decompress(body) for body in packed],
        "parsing alone": lambda: [ExportTraceServiceRequest.FromString(body) for body in raw],
        "writing rows alone (one table, no index)": write,
    }
    rows = []
    for what, work in parts.items():
        began_s = time.process_time()
        work()
        rows.append(Row(SECTION, what, spans / max(time.process_time() - began_s, 1e-9), "spans/CPU-s"))
    database.close()
    return rows

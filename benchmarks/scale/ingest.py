"""Spans that whole daemons accept over HTTP: one on SQLite, one on PostgreSQL, two on one PostgreSQL.

Two processes send gzipped deliveries of 512 spans (``common/payload.py``: 640 token ids each) and wait for each
acknowledgement. CPU-seconds are counted, since other work on the machine changes them little: those of the daemons, and
those of the PostgreSQL server next to them, which flushes every commit to the disk (``fsync``).
"""

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.common.postgres_server import PostgresServer, postgres_server, programs
from benchmarks.common.recorders import Recorder
from benchmarks.common.rows import Row
from benchmarks.common.sender import start_sender

TITLE = "Spans accepted over HTTP"

_SENDERS = 2


def run(quick: bool = False) -> list[Row]:
    spans = 2_048 if quick else 40_960
    with tempfile.TemporaryDirectory(prefix="lightning-ingest-") as scratch:
        rows = _measure("SQLite, 1 daemon", Path(scratch) / "sqlite", spans, daemons=1)
        if programs() is None:
            return [*rows, Row("ingest", "PostgreSQL", None, note="it is not installed: apt-get install postgresql")]
        with postgres_server() as server:
            for daemons in (1, 2):
                what = f"PostgreSQL, {daemons} daemon{'s' * (daemons > 1)}"
                rows += _measure(what, Path(scratch) / f"postgres-{daemons}", spans, daemons=daemons, server=server)
    return rows


def _measure(what: str, folder: Path, spans: int, *, daemons: int, server: PostgresServer | None = None) -> list[Row]:
    store = {}
    if server is not None:
        schema = f"ingest_{daemons}"
        server.execute(f"CREATE SCHEMA {schema}")
        store = {"url": server.url(schema)}
    with ExitStack() as stack:
        recorders = [Recorder(folder / str(number), store) for number in range(daemons)]
        for one in recorders:
            stack.callback(one.stop)
            one.start()
        daemons_before_s, server_before_s = _cpu_s(recorders), 0.0 if server is None else server.cpu_s()
        began = time.monotonic()
        share = spans // _SENDERS
        senders = [start_sender(n * share, share, [recorders[n % daemons].url]) for n in range(_SENDERS)]
        ended = [sender.wait() for sender in senders]
        if any(ended):
            raise RuntimeError(f"spans were not sent to {what}")
        wall_s = time.monotonic() - began
        daemons_s = _cpu_s(recorders) - daemons_before_s
        server_s = 0.0 if server is None else server.cpu_s() - server_before_s
    note = f"{spans:,} spans, {spans / wall_s:,.0f} a second of wall time, on a machine that others may use"
    rows = [
        Row("ingest", f"{what}: spans per CPU-second of daemon and store", spans / (daemons_s + server_s), note=note)
    ]
    if server is not None:
        rows.append(Row("ingest", f"{what}: spans per CPU-second of the daemons alone", spans / daemons_s))
    return rows


def _cpu_s(recorders: list[Recorder]) -> float:
    return sum(one.cpu_s() for one in recorders)

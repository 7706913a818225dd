"""What a store that several daemons share costs, and whether it loses anything when daemons and server are killed.

    python -m benchmarks.store.shared                       # SQLite and PostgreSQL; then 100,000 spans, cut
    python -m benchmarks.store.shared --quick
    python -m benchmarks.store.shared --only append         # or cut

Append: what the store alone takes, in one process; ``benchmarks.scale`` measures whole daemons. Cut: processes send to
two daemons, each delivery until it is acknowledged, while daemons are killed with SIGKILL and the server is stopped as
by a crash; then the store is compared with what was sent. The exit status is 1 if something was lost or doubled.
"""

import argparse
import asyncio
import gzip
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import psycopg

from benchmarks.common.payload import Bodies
from benchmarks.common.postgres_server import PostgresServer, postgres_server
from benchmarks.common.recorders import Recorder
from benchmarks.common.rows import Row, at_most, print_table
from benchmarks.common.sender import start_sender
from lightning_trainer.ingest.http.otlp import decode_request
from lightning_trainer.store.postgres.store import PostgresStore
from lightning_trainer.store.sqlite import SqliteStore

_AT_ONCE = 50
_EVENT_S = 8.0
"""About how long a kill and a start take: sending is spread over the time of all of them."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few spans and few kills")
    parser.add_argument("--only", choices=("append", "cut"))
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="lightning-shared-"))
    rows: list[Row] = []
    try:
        with postgres_server() as server:
            if options.only in (None, "append"):
                rows += asyncio.run(append(server, folder, spans=8_192))
            if options.only in (None, "cut"):
                sizes = (9_000, 3, 2, 1) if options.quick else (100_000, 8, 10, 2)
                rows += cut(server, folder, *sizes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print_table("a store that daemons share", rows)
    return int(any(row.met is False for row in rows))


async def append(server: PostgresServer, folder: Path, *, spans: int) -> list[Row]:
    """Measure the store alone, in this process: from decoded spans to their commit."""
    server.execute("CREATE SCHEMA append")
    bodies = [gzip.decompress(body) for _, body in Bodies().requests(spans)]
    deliveries = [decode_request(body).spans for body in bodies]
    found = []
    for what, store in (
        ("SQLite", SqliteStore(folder / "append.sqlite")),
        ("PostgreSQL", PostgresStore(server.url("append"))),
    ):
        async with store:
            before_s, server_s = time.process_time(), server.cpu_s()
            for first in range(0, len(deliveries), 4):
                await asyncio.gather(*map(store.append, deliveries[first : first + 4]))
            cpu_s, server_s = time.process_time() - before_s, server.cpu_s() - server_s
        found.append(Row("append", f"{what}: spans per CPU-second of the daemon's side", spans / cpu_s))
        if isinstance(store, PostgresStore):
            found.append(
                Row("append", f"{what}: spans per CPU-second, the server's among them", spans / (cpu_s + server_s))
            )
    return found


def cut(
    server: PostgresServer, folder: Path, spans: int, processes: int, kills: int, restarts: int, seed: int = 0
) -> list[Row]:
    """Kill each daemon ``kills`` times, and restart the server ``restarts`` times, while spans are sent."""
    server.execute("CREATE SCHEMA cut")
    recorders = [Recorder(folder / "cut" / str(n), {"url": server.url("cut")}) for n in range(2)]
    draw = random.Random(seed)
    share = spans // processes
    try:
        for one in recorders:
            one.start()
        urls = [one.url for one in recorders]
        rest_s = _EVENT_S * (2 * kills + restarts) / (share / _AT_ONCE)
        senders = [
            start_sender(n * share, share, urls[n % 2 :] + urls[: n % 2], at_once=_AT_ONCE, rest_s=rest_s)
            for n in range(processes)
        ]
        events = [0] * kills + [1] * kills + [2] * restarts
        draw.shuffle(events)
        began = time.monotonic()
        for event in events:
            time.sleep(draw.uniform(0.2, 2.0))
            if event == 2:
                server.stop(signal.SIGQUIT)
                time.sleep(draw.uniform(0.1, 1.0))
                server.start()
            else:
                recorders[event].kill()
                recorders[event].start()
        still = sum(sender.poll() is None for sender in senders)
        for sender in senders:
            if sender.wait() != 0:
                raise RuntimeError("a process could not send")
        again = sum(int(sender.stdout.read()) for sender in senders if sender.stdout is not None)
        wall_s = time.monotonic() - began
    finally:
        for one in recorders:
            one.stop()
    with psycopg.connect(server.url("cut")) as connection:
        query = """SELECT count(*), count(DISTINCT (trace_id, span_id)),
            (SELECT value FROM totals WHERE name = 'spans') FROM spans"""
        row = connection.execute(query).fetchone()
    assert row is not None
    stored, distinct, counted = row
    sent = share * processes
    note = f"{kills} kills of each of 2 daemons and {restarts} crashes of the server in {wall_s:.0f} s; {again} "
    note += f"deliveries were sent again; {still} of {processes} processes were still sending when the last one came"
    return [
        at_most("cut", "acknowledged spans that are lost", sent - distinct, 0, f"of {sent:,}", note),
        at_most("cut", "spans that are there twice", stored - distinct, 0, f"of {sent:,}"),
        at_most("cut", "spans that were counted wrongly", abs(counted - stored), 0, f"of {sent:,}"),
    ]


if __name__ == "__main__":
    sys.exit(main())

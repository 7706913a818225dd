"""What the gateway adds to a call to the engine: latency, CPU, and first-token delay; and its memory after many calls.

The engine is scripted, in a process of its own, and answers at once; the gateway records every call in a real store.
Direct calls and calls through the gateway take turns, block by block. A call waits for its record's commit, so one
fsync of this disk is part of what is added; it is also timed alone.
"""

import asyncio
import itertools
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.capture.sizes import Sizes
from benchmarks.capture.wire import Connection, Timing, chat
from benchmarks.common import stored
from benchmarks.common.processes import Child
from benchmarks.common.rows import Row, at_most
from benchmarks.common.servers.daemon import STORE

SECTION = "gateway"
_MODEL = "sized:512:128"
_PATH = "/v1/chat/completions"
_BLOCKS = 4
_CONCURRENCIES = (1, 64)
_CROWDS = 3
"""Crowds of streams before memory is measured: what the allocator keeps for the next one grows over the first ones."""


def run(sizes: Sizes, folder: Path) -> list[Row]:
    with (
        Child("common.servers.engine") as engine,
        Child("common.servers.engine", "--token-pause-s", sizes.token_pause_s) as slow,
    ):
        at_once, paced = engine.read()["url"], slow.read()["url"]
        rows = _whole(at_once, sizes, folder / "whole")
        return rows + _streams(paced, sizes, folder / "streams")


def _gateway(engine: str, folder: Path) -> Child:
    folder.mkdir()
    return Child(
        "common.servers.daemon",
        *("--folder", folder, "--engine", engine, "--model", _MODEL),
        environment={"LIGHTNING_SPOOL_DIR": str(folder / "spool")},
        errors=folder / "daemon.log",
    )


def _whole(engine: str, sizes: Sizes, folder: Path) -> list[Row]:
    """Measure answers in one piece, at concurrency 1 and 64."""
    rows = []
    with _gateway(engine, folder) as gateway:
        url = gateway.read()["url"]
        warm = asyncio.run(_load(url, sizes.gateway_warm_up, max(_CONCURRENCIES)))
        start_mib, calls = gateway.rss_mib(), len(warm)
        for concurrency in _CONCURRENCIES:
            direct: list[Timing] = []
            through: list[Timing] = []
            cpu_s = 0.0
            for _ in range(_BLOCKS):
                number = max(concurrency, sizes.gateway_calls // _BLOCKS)
                direct += asyncio.run(_load(engine, number, concurrency))
                began_s = gateway.cpu_s()
                through += asyncio.run(_load(url, number, concurrency))
                cpu_s += gateway.cpu_s() - began_s
            calls += len(through)
            rows += _latency(direct, through, concurrency)
            rate = len(through) / cpu_s if cpu_s else None
            rows.append(
                Row(SECTION, f"requests per CPU-second of the gateway, {concurrency} at once", rate, "requests/CPU-s")
            )
        rows.append(Row(SECTION, "of that, an fsync of this disk at p50", _fsync_ms(folder / "fsync"), "ms"))
        end_mib = gateway.rss_mib()
        note = f"{start_mib:.0f} MiB after the first {len(warm)} calls, {end_mib:.0f} MiB after {calls}"
        rows.append(at_most(SECTION, "memory at the end, over at the start", end_mib / start_mib, 1.1, "ratio", note))
        rows.append(_recorded(gateway, folder, calls))
    return rows


def _fsync_ms(path: Path) -> float:
    """Return the p50, in ms, of appending as much as a record of the store's log has."""
    taken_s = []
    with path.open("wb", buffering=0) as file:
        for _ in range(50):
            file.write(bytes(16 * 2**10))
            began_s = time.perf_counter()
            os.fsync(file.fileno())
            taken_s.append(time.perf_counter() - began_s)
    return statistics.median(taken_s) * 1e3


def _latency(direct: Sequence[Timing], through: Sequence[Timing], concurrency: int) -> list[Row]:
    _refuse_errors([*direct, *through])
    rows = []
    for percent in (50, 99):
        ours, theirs = (_percentile([t.total_s for t in timings], percent) * 1e3 for timings in (through, direct))
        what, note = (
            f"latency added at p{percent}, {concurrency} at once",
            f"direct {theirs:.2f} ms, gateway {ours:.2f} ms",
        )
        goal = concurrency == 1 and percent == 50
        rows.append(
            at_most(SECTION, what, ours - theirs, 2.0, "ms", note)
            if goal
            else Row(SECTION, what, ours - theirs, "ms", note=note)
        )
    return rows


def _streams(engine: str, sizes: Sizes, folder: Path) -> list[Row]:
    """Measure streams of 128 tokens that come one by one: first-token delay, then very many at once."""
    rows = []
    with _gateway(engine, folder) as gateway:
        url = gateway.read()["url"]
        direct: list[Timing] = []
        through: list[Timing] = []
        for _ in range(_BLOCKS):
            direct += asyncio.run(_load(engine, sizes.alone, 1, stream=True))
            through += asyncio.run(_load(url, sizes.alone, 1, stream=True))
        _refuse_errors([*direct, *through])
        ours, theirs = (_percentile([t.first_s for t in timings], 50) * 1e3 for timings in (through, direct))
        note = f"direct {theirs:.2f} ms, gateway {ours:.2f} ms"
        rows.append(Row(SECTION, "first-token delay added in a stream, p50", ours - theirs, "ms", note=note))
        for _ in range(_CROWDS):
            asyncio.run(_load(url, sizes.streams, sizes.streams, stream=True))
        start_mib, began_s = gateway.rss_mib(), gateway.cpu_s()
        crowd = asyncio.run(_load(url, sizes.streams, sizes.streams, stream=True))
        cpu_ms = (gateway.cpu_s() - began_s) / len(crowd) * 1e3
        end_mib = gateway.rss_mib()
        failed = sum(t.status != 200 or not t.first_s for t in crowd)
        note = f"{cpu_ms:.1f} ms CPU a stream of 128 tokens"
        rows.append(at_most(SECTION, f"streams that failed, {sizes.streams} at once", failed, 0, "streams", note))
        note = f"{start_mib:.0f} MiB after {_CROWDS} crowds of streams, {end_mib:.0f} MiB after the next"
        rows.append(at_most(SECTION, "memory after streams, over before", end_mib / start_mib, 1.1, "ratio", note))
        rows.append(_recorded(gateway, folder, len(through) + (_CROWDS + 1) * sizes.streams))
    return rows


def _recorded(gateway: Child, folder: Path, calls: int) -> Row:
    gateway.stop()
    missing = calls - stored.count(folder / STORE)
    return at_most(SECTION, f"calls not recorded ({folder.name})", missing, 0, f"of {calls:,}")


async def _load(url: str, calls: int, concurrency: int, *, stream: bool = False) -> list[Timing]:
    body, numbers = chat(_MODEL, stream=stream), itertools.count()

    async def caller() -> list[Timing]:
        timings = []
        try:
            async with Connection(url) as connection:
                while next(numbers) < calls:
                    timings.append(await connection.post(_PATH, body))
        except (OSError, EOFError):
            timings.append(Timing(0, 0.0, 0.0, 0))
        return timings

    return [timing for timings in await asyncio.gather(*(caller() for _ in range(concurrency))) for timing in timings]


def _refuse_errors(timings: Sequence[Timing]) -> None:
    failed = [timing for timing in timings if timing.status != 200]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(timings)} calls failed, the first with status {failed[0].status}")


def _percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]

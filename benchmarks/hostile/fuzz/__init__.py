"""Bodies that are nearly right, or not at all, over every route that strangers can post to.

Most are given to the application in process, and some over real sockets. None may end in a 5xx, an exception or a
traceback in the log; and what good clients send meanwhile has to come out as a sample that the loop would take.
"""

import asyncio
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from benchmarks.common.rows import Row, at_least, at_most
from benchmarks.hostile.fuzz import json_requests, otlp_bodies
from benchmarks.hostile.fuzz.aftermath import taken_by_the_loop
from benchmarks.hostile.fuzz.sending import InProcess, OverSockets, Sender
from benchmarks.hostile.fuzz.world import World, opened

_SECTION = "fuzz"
_AT_ONCE = 32
_EVERY = 500
"""Bodies between two of a good client."""
_BODIES_AN_ATTEMPT = 6
"""So that some bodies come again, whole or damaged, and some contradict each other."""
_MEMORY_MIB = 1024
Request = tuple[str, bytes, dict[str, str]]


def run(folder: Path, bodies: int, over_sockets: int, seed: int) -> list[Row]:
    """Send so many bodies each way and look at what came of them."""
    return asyncio.run(_run(folder, bodies, over_sockets, seed))


async def _run(folder: Path, bodies: int, over_sockets: int, seed: int) -> list[Row]:
    async with opened(folder) as world:
        began, rows = time.monotonic(), []
        found = Found()
        await _send_all(InProcess(world.app), bodies, seed, found)
        took_s = time.monotonic() - began
        async with OverSockets.to(world.app) as sockets:
            await _send_all(sockets, over_sockets, seed + 1, found)
        rows += _rows(world, found, bodies, over_sockets, took_s)
        samples, sentence = await taken_by_the_loop(world.store, world.config.policy[0], found.good)
        rows.append(
            at_least(
                _SECTION,
                "good attempts that the loop takes and builds into samples",
                samples,
                len(found.good),
                "",
                sentence,
            )
        )
        return rows


class Found:
    """What was answered."""

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.routes: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        """Of a stranger's bodies: 5xx answers and exceptions."""
        self.good: list[str] = []
        """Attempts of the good client."""
        self.good_s: list[float] = []
        self.good_refused: Counter[int] = Counter()
        self.rss_mib: list[float] = []

    def fail(self, what: str, path: str, body: bytes) -> None:
        what = what[:200]
        if what not in self.failures:
            print(f"{what}\n  {path[:200]}\n  {body[:1500]!r}", file=sys.stderr, flush=True)
        self.failures[what] += 1


async def _send_all(sender: Sender, bodies: int, seed: int, found: Found) -> None:
    """Send with so many at once; each worker has a random state of its own, so that the seed gives the same bodies."""
    left = iter(range(bodies))

    async def work(number: int) -> None:
        rng = random.Random(f"{seed}/{number}")
        for made, at in enumerate(left):
            if at % _EVERY == 0:
                await _be_good(sender, f"good-{seed}-{at}", found)
            kind, path, body, headers = _made(rng, f"{seed}-{number}-{made // _BODIES_AN_ATTEMPT}")
            found.routes[kind] += 1
            status, said = await sender.post(path, body, headers)
            found.statuses[status] += 1
            if (status >= 500 and "try again" not in said) or status == 0:  # too many at once is an answer
                found.fail(f"{kind}: {said.splitlines()[-1] if said else status}", path, body)

    await asyncio.gather(*(work(number) for number in range(_AT_ONCE)))


def _made(rng: random.Random, name: str) -> tuple[str, str, bytes, dict[str, str]]:
    """Return the kind, path, body and headers of one request."""
    roll = rng.random()
    names = [f"good-0-{_EVERY * rng.randrange(20)}", name]
    if roll < 0.35:
        return "OTLP, protobuf", "/v1/traces", *otlp_bodies.protobuf(name, rng)
    if roll < 0.55:
        return "OTLP, JSON", "/v1/traces", *otlp_bodies.as_json(name, rng)
    kinds: tuple[tuple[str, Callable[[list[str], random.Random], Request]], ...] = (
        ("rewards", json_requests.reward),
        ("ends of rollouts", json_requests.end),
        ("gateway", json_requests.call),
    )
    kind, make = kinds[0] if roll < 0.7 else kinds[1] if roll < 0.8 else kinds[2]
    return kind, *make(names, rng)


async def _be_good(sender: Sender, name: str, found: Found) -> None:
    """Two attempts at a task that nobody else has, with different rewards."""
    for attempt, reward in ((f"{name}-a", 0.0), (f"{name}-b", 1.0)):
        request = otlp_bodies.attempt(attempt, reward=reward, task=name)
        began = time.monotonic()
        headers = {"content-type": "application/x-protobuf"}
        status, _ = await sender.post("/v1/traces", request.SerializeToString(), headers)
        found.good_s.append(time.monotonic() - began)
        if status == 200:
            found.good.append(attempt)
        else:
            found.good_refused[status] += 1
    found.rss_mib.append(_rss_mib())


def _rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def _rows(world: World, found: Found, bodies: int, over_sockets: int, took_s: float) -> list[Row]:
    of = ", ".join(f"{count:,} {kind}" for kind, count in found.routes.most_common())
    answered = ", ".join(f"{status}: {count:,}" for status, count in sorted(found.statuses.items()))
    logged = world.tracebacks.found
    half = found.rss_mib[len(found.rss_mib) // 2]
    good_s = sorted(found.good_s)
    peak = _peak_mib()
    return [
        at_least(_SECTION, "fuzzed bodies in process", bodies, bodies, "", f"{of}; with those over sockets"),
        at_least(_SECTION, "fuzzed bodies over sockets", over_sockets, over_sockets, ""),
        Row(_SECTION, "bodies a second in process", bodies / took_s, "/s", note=f"{took_s:.0f} s"),
        Row(_SECTION, "answers", sum(found.statuses.values()), "", note=answered),
        at_most(_SECTION, "answers of 5xx, and exceptions", found.failures.total(), 0, "", _shown(found.failures)),
        at_most(_SECTION, "errors and tracebacks in the log", logged.total(), 0, "", _shown(logged)),
        at_most(
            _SECTION,
            "good requests refused",
            found.good_refused.total(),
            0,
            f"of {len(good_s)}",
            str(dict(found.good_refused) or ""),
        ),
        at_most(
            _SECTION,
            "good requests, p99",
            good_s[int(0.99 * (len(good_s) - 1))],
            2.0,
            "s",
            f"beside {_AT_ONCE} others at once, in their process",
        ),
        at_most(_SECTION, "peak memory of the process, the fuzzer's included", peak, _MEMORY_MIB, "MiB"),
        Row(_SECTION, "memory gained in the second half", found.rss_mib[-1] - half, "MiB"),
    ]


def _shown(failures: Counter[str]) -> str:
    return "; ".join(f"{count} x {what}" for what, count in failures.most_common(12))


def _peak_mib() -> float:
    """Of this program alone: ``ru_maxrss`` would be the larger of its own and that of the process that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024

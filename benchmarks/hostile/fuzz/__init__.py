"""Bodies that are nearly right, or not at all, and absurd questions, over every route that there is.

Most are given to the application in process, and some over real sockets. None may end in a 5xx, an exception, or a
traceback in the log; and what good clients send meanwhile has to become samples that the loop would take.
"""

import asyncio
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from fastapi.routing import APIRoute

from benchmarks.common.rows import Row, at_least, at_most
from benchmarks.hostile.fuzz import json_requests, other_requests, otlp_bodies
from benchmarks.hostile.fuzz.aftermath import taken_by_the_loop
from benchmarks.hostile.fuzz.sending import InProcess, OverSockets, Sender
from benchmarks.hostile.fuzz.world import World, opened

_SECTION = "fuzz"
_AT_ONCE = 32
_EVERY = 500
"""Bodies between two visits of a good client."""
_BODIES_AN_ATTEMPT = 6
"""Several, so that some bodies come again, whole or damaged, and some contradict each other."""
_MEMORY_MIB = 1024
_WITHOUT_END = {"/events", "/lightning/runs/{name}/hold"}
"""Routes whose answers last for as long as the client listens."""
Request = tuple[str, str, bytes, dict[str, str]]
"""Method, path, body and headers."""


def run(folder: Path, bodies: int, over_sockets: int, seed: int) -> list[Row]:
    """Send ``bodies`` in process and ``over_sockets`` over sockets, and return what came of them."""
    return asyncio.run(_run(folder, bodies, over_sockets, seed))


async def _run(folder: Path, bodies: int, over_sockets: int, seed: int) -> list[Row]:
    async with opened(folder) as world:
        began, rows = time.monotonic(), []
        found = Found()
        in_process = InProcess(world.app)
        await _send_all(in_process, bodies, seed, found)
        took_s = time.monotonic() - began
        async with OverSockets.to(world.app) as sockets:
            await _send_all(sockets, over_sockets, seed + 1, found)
        rows += _rows(world, found, bodies, over_sockets, took_s)
        rows.append(_left_out(world, in_process.reached))
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
        """On a stranger's bodies: 5xx answers and exceptions."""
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
    """Send ``_AT_ONCE`` requests at once; each worker has its own random state, so the seed gives the same bodies."""
    left = iter(range(bodies))

    async def work(number: int) -> None:
        rng = random.Random(f"{seed}/{number}")
        for made, at in enumerate(left):
            if at % _EVERY == 0:
                await _be_good(sender, f"good-{seed}-{at}", found)
            kind, method, path, body, headers = _made(rng, f"{seed}-{number}-{made // _BODIES_AN_ATTEMPT}")
            found.routes[kind] += 1
            status, said = await sender.send(method, path, body, headers)
            found.statuses[status] += 1
            # A refusal for too many requests at once is a valid answer, and so is ``/readyz`` when something is not
            # ready.
            expected = "try again" in said or path.partition("?")[0] == "/readyz"
            if status == 0 or (status >= 500 and not expected):
                found.fail(f"{kind}: {said.splitlines()[-1] if said else status}", path, body)

    await asyncio.gather(*(work(number) for number in range(_AT_ONCE)))


def _otlp(make: Callable[[str, random.Random], tuple[bytes, dict[str, str]]]) -> Callable[..., Request]:
    return lambda names, rng: ("POST", "/v1/traces", *make(names[1], rng))


def _posted(make: Callable[[list[str], random.Random], tuple[str, bytes, dict[str, str]]]) -> Callable[..., Request]:
    return lambda names, rng: ("POST", *make(names, rng))


_KINDS: dict[str, tuple[float, Callable[[list[str], random.Random], Request]]] = {
    "OTLP, protobuf": (0.24, _otlp(otlp_bodies.protobuf)),
    "OTLP, JSON": (0.17, _otlp(otlp_bodies.as_json)),
    "rewards": (0.13, _posted(json_requests.reward)),
    "ends of rollouts": (0.08, _posted(json_requests.end)),
    "gateway": (0.15, _posted(json_requests.call)),
    "questions": (0.12, other_requests.asked),
    "feedback": (0.03, other_requests.feedback),
    "by hand": (0.03, other_requests.by_hand),
    "prompts": (0.02, other_requests.prompt),
    "other signals": (0.02, other_requests.other_signal),
    "forms": (0.01, other_requests.form),
}
"""By kind: its share, and the function that makes a request."""
_NAMES, _SHARES = list(_KINDS), [share for share, _ in _KINDS.values()]


def _made(rng: random.Random, name: str) -> tuple[str, str, str, bytes, dict[str, str]]:
    """Return the kind, method, path, body and headers of one request."""
    names = [f"good-0-{_EVERY * rng.randrange(20)}", name]
    (kind,) = rng.choices(_NAMES, _SHARES)
    return kind, *_KINDS[kind][1](names, rng)


async def _be_good(sender: Sender, name: str, found: Found) -> None:
    """Send two attempts at a task of their own, with different rewards."""
    for attempt, reward in ((f"{name}-a", 0.0), (f"{name}-b", 1.0)):
        request = otlp_bodies.attempt(attempt, reward=reward, task=name)
        began = time.monotonic()
        headers = {"content-type": "application/x-protobuf"}
        status, _ = await sender.send("POST", "/v1/traces", request.SerializeToString(), headers)
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


def _left_out(world: World, reached: set[tuple[str, str]]) -> Row:
    routes = {
        (method, route.path)
        for route in world.app.routes
        if isinstance(route, APIRoute) and route.path not in _WITHOUT_END
        for method in route.methods
    }
    left_out = sorted(f"{method} {path}" for method, path in routes - reached)
    return at_most(_SECTION, "routes that nothing came to", len(left_out), 0, f"of {len(routes)}", ", ".join(left_out))


def _shown(failures: Counter[str]) -> str:
    return "; ".join(f"{count} x {what}" for what, count in failures.most_common(12))


def _peak_mib() -> float:
    """Return the peak of this program alone: ``ru_maxrss`` would be the larger of its own and its parent process's."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024

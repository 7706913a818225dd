"""Spans lost and doubled on the way to the store when things go wrong; ours and the standard BatchSpanProcessor's.

Each case has a daemon and a spool of its own. Spans are numbered by name, so the store itself says what is missing.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.capture.sizes import Sizes
from benchmarks.common import stored
from benchmarks.common.processes import Child, free_port
from benchmarks.common.rows import Row, at_most
from benchmarks.common.servers.daemon import STORE

SECTION = "loss"
_MOST_MEMORY_MIB = 256
_SECONDS_A_KILL = 8.0
_ORPHANS_QUIET_S = 15.0
"""The daemon looks for spools of dead processes only every few seconds."""


@dataclass(slots=True)
class Outcome:
    expected: int
    lost: int
    doubled: int
    peak_mib: float | None = None
    note: str = ""


@dataclass(slots=True)
class Place:
    """One case's daemon, which can be killed and comes back on its port, and its writers."""

    folder: Path
    client: str
    port: int = field(default_factory=free_port)
    daemon: Child | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def store(self) -> Path:
        return self.folder / STORE

    def _environment(self) -> dict[str, str]:
        return {"LIGHTNING_SPOOL_DIR": str(self.folder / "spool")}

    def start_daemon(self) -> Child:
        self.daemon = Child(
            "common.servers.daemon",
            *("--folder", self.folder, "--port", self.port),
            environment=self._environment(),
            errors=self.folder / "daemon.log",
        )
        self.daemon.read()
        return self.daemon

    def writer(self, *arguments: object) -> Child:
        return Child(
            "capture.programs.writer",
            *("--with", self.client, "--endpoint", self.endpoint, *arguments),
            environment=self._environment(),
            errors=self.folder / "writer.log",
        )

    def close(self) -> None:
        if self.daemon is not None:
            self.daemon.stop()

    def outcome(self, expected: Iterable[str], *, column: str = "name", **said: object) -> Outcome:
        wanted = set(expected)
        # Once a standard writer has ended, none of its spans can still be under way.
        quiet_s = _ORPHANS_QUIET_S if self.client == "ours" else 1.0
        stored.wait_for(self.store, len(wanted), quiet_s=quiet_s)
        found: Counter[str] = stored.names(self.store, column)
        doubled = sum(count - 1 for name, count in found.items() if name in wanted)
        return Outcome(len(wanted), len(wanted - found.keys()), doubled, **said)  # type: ignore[arg-type]


def _numbered(name: str, spans: int) -> list[str]:
    return [f"{name}-{number}" for number in range(spans)]


def burst(place: Place, sizes: Sizes) -> Outcome:
    place.start_daemon()
    with place.writer("--name", "w", "--spans", sizes.burst_spans) as writer:
        told = writer.read()
    return place.outcome(_numbered("w", sizes.burst_spans), peak_mib=told["peak_mib"])


def outage(place: Place, sizes: Sizes) -> Outcome:
    """Start the daemon only after the writer: four of five spans are written while it is down."""
    spans = max(200, int(40 * sizes.outage_s))
    with place.writer("--name", "w", "--spans", spans, "--seconds", 1.25 * sizes.outage_s) as writer:
        time.sleep(sizes.outage_s)
        place.start_daemon()
        told = writer.read()
    note = f"away for {sizes.outage_s:g} s"
    return place.outcome(_numbered("w", spans), peak_mib=told["peak_mib"], note=note)


def killed_daemon(place: Place, sizes: Sizes) -> Outcome:
    """Kill the daemon with -9 in the middle of ingest and restart it, again and again, while spans are written."""
    daemon = place.start_daemon()
    kills = 0
    # Slow enough that fewer spans wait when a daemon comes back than are stored before it is killed again.
    seconds = _SECONDS_A_KILL * sizes.kills
    with place.writer("--name", "w", "--spans", sizes.killed_spans, "--seconds", seconds) as writer:
        for kill in range(1, sizes.kills + 1):
            stored.wait_for(place.store, sizes.killed_spans * kill // (sizes.kills + 1), quiet_s=20)
            if writer.process.poll() is not None:
                break
            daemon.kill()
            kills += 1
            daemon = place.start_daemon()
        told = writer.read()
    note = f"killed {kills} of {sizes.kills} times"
    return place.outcome(_numbered("w", sizes.killed_spans), peak_mib=told["peak_mib"], note=note)


def killed_agent(place: Place, sizes: Sizes) -> Outcome:
    """Kill the program with -9 right after a call returned."""
    place.start_daemon()
    returned: list[str] = []
    with Child("common.servers.engine") as engine:
        url = engine.read()["url"]
        for _ in range(sizes.agent_kills):
            with place.writer("--engine", url, "--calls", 5) as writer:
                returned.extend(line.strip('"') for line in writer.lines())
    column = "response_id" if place.client == "ours" else "name"
    return place.outcome(returned, column=column, note=f"{sizes.agent_kills} times, after its fifth call")


def fork(place: Place, sizes: Sizes) -> Outcome:
    place.start_daemon()
    children, spans = 3, sizes.writer_spans
    with place.writer("--name", "w", "--spans", spans, "--fork", children) as writer:
        told = writer.read()
    expected = [*_numbered("w", spans), *(n for child in range(children) for n in _numbered(f"wf{child}", spans))]
    return place.outcome(expected, peak_mib=told["peak_mib"], note=f"{children} forked children")


def at_once(place: Place, sizes: Sizes) -> Outcome:
    place.start_daemon()
    names = [f"w{number}" for number in range(sizes.writers)]
    writers = [place.writer("--name", name, "--spans", sizes.writer_spans) for name in names]
    try:
        peaks = [writer.read()["peak_mib"] for writer in writers]
    finally:
        for writer in writers:
            writer.__exit__()
    expected = [name for writer in names for name in _numbered(writer, sizes.writer_spans)]
    return place.outcome(expected, peak_mib=max(peaks))


CASES: dict[str, Callable[[Place, Sizes], Outcome]] = {
    "burst": burst,
    "daemon-away": outage,
    "daemon-killed": killed_daemon,
    "agent-killed": killed_agent,
    "fork": fork,
    "processes-at-once": at_once,
}


def run(sizes: Sizes, folder: Path, cases: Sequence[str] | None = None) -> list[Row]:
    unknown = set(cases or ()) - set(CASES)
    if unknown:
        raise SystemExit(f"no case {', '.join(sorted(unknown))}; there are: {', '.join(CASES)}")
    rows = []
    for case in cases or CASES:
        play = CASES[case]
        for client in ("ours", "standard") if sizes.peers else ("ours",):
            place = Place(folder / f"{case}-{client}", client)
            place.folder.mkdir()
            try:
                rows.extend(_rows(case, client, play(place, sizes)))
            finally:
                place.close()
    return rows


def _rows(case: str, client: str, outcome: Outcome) -> list[Row]:
    memory = "" if outcome.peak_mib is None else f"peak {outcome.peak_mib:.0f} MiB"
    note = "; ".join(filter(None, (outcome.note, memory)))
    unit = f"of {outcome.expected:,} spans"
    if client == "standard":
        said = f"{outcome.doubled} doubled" + (f"; {note}" if note else "")
        return [Row(SECTION, f"{case}: lost by BatchSpanProcessor", outcome.lost, unit, note=said)]
    rows = [
        at_most(SECTION, f"{case}: lost", outcome.lost, 0, unit, note),
        at_most(SECTION, f"{case}: doubled", outcome.doubled, 0, unit),
    ]
    if outcome.peak_mib is not None:
        rows.append(at_most(SECTION, f"{case}: peak memory", outcome.peak_mib, _MOST_MEMORY_MIB, "MiB"))
    return rows

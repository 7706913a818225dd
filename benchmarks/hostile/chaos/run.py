"""Faults at random over the real processes: the run has to end where an undisturbed one does, without help.

A real agent's run is recorded. Its spans are then given to a second daemon, in another order and some of them twice,
partly by programs that are killed as well, while everything is killed, stopped, filled, locked, and damaged. In the
end, everything acknowledged has to be in the store, no transition may be trained twice, and every version's weights
have to be the same bits.
"""

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks.common.rows import Row, at_least, at_most
from benchmarks.hostile.chaos.faults import Disk, Faults
from benchmarks.hostile.chaos.recorded import Message, SpanId, StepMessages, Undisturbed, record
from benchmarks.hostile.chaos.supervised import PATIENCE_S, Supervised
from benchmarks.hostile.chaos.writers import Writers

_SECTION = "chaos"


def run(folder: Path, *, faults: int, faults_a_step: int, between_s: float, seed: int) -> list[Row]:
    """Record a run, repeat it with ``faults`` faults, and compare.

    Args:
        between_s: mean pause between two faults of a step; shorter pauses hit more that is still recovering.

    Raises:
        TimeoutError: a step was not done in time, because something did not recover by itself.
    """
    steps = max(2, -(-faults // faults_a_step))
    undisturbed = record(folder / "undisturbed", steps, seed)
    _say(f"recorded {steps} steps, {len(undisturbed.spans)} spans; seed {seed}")
    disturbed = folder / "disturbed"
    disturbed.mkdir()
    disk = Disk(disturbed / "state")
    try:
        return list(_disturbed(disturbed, disk, undisturbed, faults, between_s, random.Random(seed)))
    finally:
        disk.free()
        disk.close()


def _disturbed(
    folder: Path, disk: Disk, undisturbed: Undisturbed, faults: int, between_s: float, rng: random.Random
) -> Iterator[Row]:
    began = time.monotonic()
    daemon = Supervised(folder)
    writers = Writers(daemon.environment, folder, rng)
    all_faults = Faults(daemon, writers, disk, rng)
    done: Counter[str] = Counter()
    acknowledged: set[SpanId] = set()
    steps_s: list[float] = []
    try:
        daemon.wait_for(0)
        for number, messages in enumerate(undisturbed.steps, start=1):
            step_began = time.monotonic()
            share = faults * number // len(undisturbed.steps) - done.total()
            giving = threading.Thread(target=_give, args=(daemon, writers, messages, acknowledged, rng.random()))
            giving.start()
            for _ in range(share):
                time.sleep(rng.expovariate(1 / between_s))
                what = all_faults.one()
                done[what] += 1
                _say(f"{time.monotonic() - began:7.0f} s  step {number}: {what}")
            all_faults.end()
            giving.join()
            while not writers.all_kept:
                time.sleep(0.2)
            daemon.wait_for(number)
            steps_s.append(time.monotonic() - step_began)
            _say(f"{time.monotonic() - began:7.0f} s  step {number} of {len(undisturbed.steps)} done")
        checksums = daemon.checksums()
        kept = {span for at in writers.kept for span in writers.messages[at].spans}
        stored = set(daemon.rows("SELECT trace_id, span_id FROM spans"))
        trained = Counter(daemon.trained())
    finally:
        writers.stop()
        all_faults.end()
        lives = len(daemon.ended)
        status = daemon.stop()
    _, alive = psutil.wait_procs([one for one in daemon.started if one.is_running()], timeout=180)
    for what, count in sorted(done.items()):
        _say(f"{count:>4} x {what}")
    yield at_least(_SECTION, "faults", done.total(), faults, "", _by_kind(done))
    yield at_most(_SECTION, "acknowledged spans that are not stored", len((acknowledged | kept) - stored), 0, "")
    yield at_most(_SECTION, "spans of the run that are not stored", len(undisturbed.spans - stored), 0, "")
    yield at_most(_SECTION, "transitions trained twice", sum(count > 1 for count in trained.values()), 0, "")
    yield at_most(
        _SECTION,
        "transitions trained in one run and not in the other",
        len(set(trained) ^ set(undisturbed.trained)),
        0,
        f"of {len(undisturbed.trained)}",
    )
    versions = set(checksums) | set(undisturbed.checksums)
    other = [version for version in versions if checksums.get(version) != undisturbed.checksums.get(version)]
    yield at_most(
        _SECTION, "versions whose weights differ from the undisturbed run's", len(other), 0, f"of {len(versions)}"
    )
    yield at_most(_SECTION, "exit status of the last SIGTERM", status, 0, "")
    left = "; ".join(str(process) for process in alive)
    yield at_most(_SECTION, "processes left behind", len(alive), 0, f"of {len(daemon.started)}", left)
    yield Row(
        _SECTION, "times that the daemon was started again", lives, "", note=f"exit statuses {_counted(daemon.ended)}"
    )
    yield Row(_SECTION, "longest step, recoveries included", max(steps_s), "s")
    yield Row(_SECTION, "the disturbed run", time.monotonic() - began, "s", note=f"{len(steps_s)} steps")


def _give(daemon: Supervised, writers: Writers, messages: StepMessages, acknowledged: set[SpanId], seed: float) -> None:
    """Send a step's spans: the gateway's first and directly, the rest by this process or by the programs, at random."""
    rng = random.Random(seed)
    for message in messages.of_gateway:
        _send(daemon, message, acknowledged)
    for message in messages.of_agent:
        if rng.random() < 0.3:
            _send(daemon, message, acknowledged)
        else:
            writers.give(message)
        time.sleep(rng.uniform(0, 2))


def _send(daemon: Supervised, message: Message, acknowledged: set[SpanId]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not daemon.send(message.body):
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody took the spans: {daemon.last_words()}")
        time.sleep(0.5)
    acknowledged.update(message.spans)


def _by_kind(done: Counter[str]) -> str:
    kinds: Counter[str] = Counter()
    for what, count in done.items():
        kinds[what.partition(":")[0]] += count
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())


def _counted(statuses: list[int]) -> str:
    return ", ".join(f"{status}: {count}" for status, count in sorted(Counter(statuses).items()))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

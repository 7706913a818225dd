"""The quickstart as it is, with two mini-batches or epochs a step, and with a forced tool call: what each learns.

Half of the quickstart's steps with its model and configuration (``examples/calculator``), and the same tasks; three
runs of each, one daemon after the other. With two epochs each batch is learned from twice, so the learning rate is two
thirds of the quickstart's, which is as high as one update a batch tolerates.

The reward of a step is what its attempts earned before it. A run's score is the mean reward of its last three steps
until the CPU-minute at which the first of all compared runs ended (CPU time, since a minute of a shared machine is not
always worth the same). For the forced tool, the score is how much more the second half of the steps earned than the
first, for both it and the free agent. When a run takes off is chance: at first, few groups of a step teach anything.
Therefore means of three runs are compared. The mean of three steps of 70 attempts has a standard error of 0.035, a
difference of two such means 0.05: an arm that is behind by less than two of these is not known to be slower.

A run that ended has a line in ``docs/proof/training-learning.jsonl`` and is not made again: runs of several days are
collected there. Delete the file to start over, for example after a change of what is trained.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.common.learning import Learning, learned
from benchmarks.common.rows import Row, at_least, at_most
from benchmarks.training.sampling import forced_tool

TITLE = "The quickstart as it is, with mini-batches, with epochs, and with a forced tool"
RESULTS = Path("docs/proof/training-learning.jsonl")
_STEPS, _QUICK_STEPS = 13, 4
_RUNS = 3
_LAST = 3
_NOISE = 0.1
"""Two standard errors of a difference (see above)."""
_KEPT = ("step", "cpu_s", "reward/mean", "mismatch/abs_mean", "actor/pg_clipfrac", "sampling/no_choice")

_Steps = list[dict[str, Any]]
_Runs = Sequence[_Steps]


def arms(steps: int, tasks: int) -> list[Learning]:
    """Return what is compared; the others are compared with the first."""
    return [
        Learning("plain", steps, tasks),
        Learning("2 mini-batches", steps, tasks, policy="algorithm = { mini_batches = 2 }"),
        Learning("2 epochs", steps, tasks, lr=2e-5, policy="algorithm = { ppo_epochs = 2 }"),
        Learning("forced tool", steps, tasks, ways=(forced_tool,)),
    ]


def run(quick: bool) -> list[Row]:
    compared = arms(_QUICK_STEPS, 4) if quick else arms(_STEPS, 10)
    made = {arm.name: [learned(arm)] for arm in compared} if quick else _kept(compared)
    plain = made["plain"]
    return [
        *(row for name, runs in made.items() for row in _rows(name, runs)),
        _against_plain("2 mini-batches", plain, made["2 mini-batches"]),
        _against_plain("2 epochs", plain, made["2 epochs"]),
        _against_a_forced_tool(plain, made["forced tool"]),
    ]


def _kept(compared: Sequence[Learning]) -> dict[str, _Runs]:
    """Make the runs that lack a line in the file of results, each arm's first before any second."""
    made: dict[str, list[_Steps]] = {arm.name: [] for arm in compared}
    if RESULTS.exists():
        for line in RESULTS.read_text().splitlines():
            told = json.loads(line)
            made[told["arm"]].append(told["steps"])
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    for number in range(_RUNS):
        for arm in compared:
            if len(made[arm.name]) <= number:
                steps = [{name: step[name] for name in _KEPT if name in step} for step in learned(arm)]
                made[arm.name].append(steps)
                with RESULTS.open("a") as file:
                    file.write(json.dumps({"arm": arm.name, "steps": steps}) + "\n")
    return dict(made)


def _rows(name: str, runs: _Runs) -> Iterator[Row]:
    trained = [step for steps in runs for step in steps if "mismatch/abs_mean" in step]

    def mean(metric: str) -> float | None:
        return fmean(step.get(metric, 0.0) for step in trained) if trained else None

    a_step = fmean(steps[-1]["cpu_s"] / len(steps) for steps in runs)
    by_run = "; ".join(", ".join(f"{reward:.2f}" for reward in _rewards(steps)) for steps in runs)
    yield Row("learning", f"{name}: a step", a_step, "CPU-s", note=f"rewards: {by_run}")
    yield Row("learning", f"{name}: mismatch/abs_mean", mean("mismatch/abs_mean"), "nats")
    clipped = mean("actor/pg_clipfrac")
    if name == "2 epochs":  # in the second epoch the weights have moved: the clip bounds how far
        yield Row("learning", f"{name}: clipped tokens", clipped)
    else:
        yield at_most("learning", f"{name}: clipped tokens", clipped, 0.02, "")
    yield Row("learning", f"{name}: tokens without a choice", mean("sampling/no_choice"), note="share, masked")


def _against_plain(name: str, plain: _Runs, other: _Runs) -> Row:
    shared_s = min(steps[-1]["cpu_s"] for steps in (*plain, *other))
    one, more = ([_last(_until(steps, shared_s)) for steps in runs] for runs in (plain, other))
    what = f"reward at {shared_s / 60:.0f} CPU-minutes: {name} less plain"
    return at_least("learning", what, fmean(more) - fmean(one), -_NOISE, "", _both(more, one))


def _against_a_forced_tool(plain: _Runs, forced: _Runs) -> Row:
    one, more = (list(map(_gain, runs)) for runs in (plain, forced))
    what = "gain in reward: forced tool less plain"
    return at_least("learning", what, fmean(more) - fmean(one), -_NOISE, "", _both(more, one))


def _both(more: Sequence[float], one: Sequence[float]) -> str:
    return " and ".join(", ".join(f"{value:.3f}" for value in values) for values in (more, one))


def _until(steps: _Steps, cpu_s: float) -> _Steps:
    return [step for step in steps if step["cpu_s"] <= cpu_s]


def _rewards(steps: Sequence[Mapping[str, Any]]) -> list[float]:
    return [step["reward/mean"] for step in steps if "reward/mean" in step]


def _last(steps: _Steps) -> float:
    return fmean(_rewards(steps)[-_LAST:])


def _gain(steps: _Steps) -> float:
    """Return the mean reward of the second half of the steps minus that of the first."""
    rewards = _rewards(steps)
    return fmean(rewards[len(rewards) // 2 :]) - fmean(rewards[: len(rewards) // 2])

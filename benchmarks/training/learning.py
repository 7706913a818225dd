"""The quickstart as it is, with two mini-batches or epochs a step, and with a forced tool call: what each learns.

Half of the quickstart's steps with its model and configuration (``examples/calculator``), and the same tasks and seeds;
one daemon after the other. The reward of a step is what its attempts earned before it. Mini-batches and epochs are
compared with the plain run at the CPU-minute at which the first of the two ended, by the rewards of the last three
steps until then (CPU time, since a minute of a shared machine is not always worth the same); the forced tool by the
gain from the first half of the steps to the second, beside the free agent's. A step's reward is a mean of 70 attempts,
so a difference of two means of three steps has a standard error of about 0.05: what is slower by less than two of them
is not known to be slower, and the goal is not missed.
"""

from collections.abc import Iterator
from statistics import fmean
from typing import Any

from benchmarks.common.learning import Learning, learned
from benchmarks.common.rows import Row, at_least, at_most

TITLE = "The quickstart as it is, with mini-batches, with epochs, and with a forced tool"
_STEPS, _QUICK_STEPS = 13, 4
_LAST = 3
_NOISE = 0.1
"""Two standard errors of a difference (see above)."""

_Steps = list[dict[str, Any]]


def run(quick: bool) -> list[Row]:
    steps, tasks = (_QUICK_STEPS, 4) if quick else (_STEPS, 10)
    plain = learned(Learning("plain", steps, tasks))
    several = learned(Learning("2 mini-batches", steps, tasks, policy="algorithm = { mini_batches = 2 }"))
    again = learned(Learning("2 epochs", steps, tasks, policy="algorithm = { ppo_epochs = 2 }"))
    forced = learned(Learning("forced tool", steps, tasks, forced_tool=True))
    arms = {"plain": plain, "2 mini-batches": several, "2 epochs": again, "forced tool": forced}
    return [
        *(row for name, made in arms.items() for row in _rows(name, made)),
        _beside_plain("2 mini-batches", plain, several),
        _beside_plain("2 epochs", plain, again),
        _beside_a_forced_tool(plain, forced),
    ]


def _rows(name: str, made: _Steps) -> Iterator[Row]:
    by_step = ", ".join(f"{reward:.2f}" for reward in _rewards(made))
    yield Row("learning", f"{name}: a step", made[-1]["cpu_s"] / len(made), "CPU-s", note=f"rewards: {by_step}")
    trained = [step for step in made if "mismatch/abs_mean" in step]

    def mean(metric: str) -> float | None:
        return fmean(step.get(metric, 0.0) for step in trained) if trained else None

    yield Row("learning", f"{name}: mismatch/abs_mean", mean("mismatch/abs_mean"), "nats")
    yield at_most("learning", f"{name}: clipped tokens", mean("actor/pg_clipfrac"), 0.02, "")
    yield Row("learning", f"{name}: tokens without a choice", mean("sampling/no_choice"), note="share, masked")


def _beside_plain(name: str, plain: _Steps, other: _Steps) -> Row:
    shared_s = min(plain[-1]["cpu_s"], other[-1]["cpu_s"])
    one, more = ([step for step in made if step["cpu_s"] <= shared_s] for made in (plain, other))
    what = f"reward at {shared_s / 60:.0f} CPU-minutes: {name} less plain"
    note = f"last {_LAST} of {len(more)} steps and of {len(one)}"
    return at_least("learning", what, _last(more) - _last(one), -_NOISE, "", note)


def _beside_a_forced_tool(plain: _Steps, forced: _Steps) -> Row:
    more = _gain(forced) - _gain(plain)
    note = f"{_gain(forced):.3f} and {_gain(plain):.3f}; last {_LAST} steps {_last(forced):.3f} and {_last(plain):.3f}"
    return at_least("learning", "gain in reward: forced tool less plain", more, -_NOISE, "", note)


def _rewards(made: _Steps) -> list[float]:
    return [step["reward/mean"] for step in made if "reward/mean" in step]


def _last(made: _Steps) -> float:
    return fmean(_rewards(made)[-_LAST:])


def _gain(made: _Steps) -> float:
    """Mean reward of the second half of the steps less that of the first."""
    rewards = _rewards(made)
    return fmean(rewards[len(rewards) // 2 :]) - fmean(rewards[: len(rewards) // 2])

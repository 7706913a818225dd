"""The calculator agent trained twice, with free and with a forced tool call: rewards, mismatch, clipped tokens.

Half of the quickstart's steps, with its configuration (``examples/calculator/lightning.toml``), and the same tasks and
seeds; one daemon after the other. The reward of a step is what its attempts earned before it.
"""

from statistics import fmean
from typing import Any

from benchmarks.common.learning import Learning, learned
from benchmarks.common.rows import Row, at_least, at_most

TITLE = "The calculator agent with a free and with a forced tool call"
_STEPS, _QUICK_STEPS = 13, 4


def run(quick: bool) -> list[Row]:
    steps, tasks = (_QUICK_STEPS, 4) if quick else (_STEPS, 10)
    free = learned(Learning("free", steps, tasks))
    forced = learned(Learning("forced", steps, tasks, forced_tool=True))
    rows = [row for name, found in (("free", free), ("forced", forced)) for row in _rows(name, found)]
    gain = _gain(forced) - _gain(free)
    return [*rows, at_least("learning", "gain in reward, forced less free", gain, 0.0 if not quick else -0.1, "")]


def _gain(steps: list[dict[str, Any]]) -> float:
    """Mean reward of the second half of the steps less that of the first."""
    rewards = [step["reward/mean"] for step in steps if "reward/mean" in step]
    return fmean(rewards[len(rewards) // 2 :]) - fmean(rewards[: len(rewards) // 2])


def _rows(name: str, steps: list[dict[str, Any]]) -> list[Row]:
    trained = [step for step in steps if "mismatch/abs_mean" in step]

    def mean(metric: str) -> float | None:
        return fmean(step.get(metric, 0.0) for step in trained) if trained else None

    rewards = ", ".join(f"{step['reward/mean']:.2f}" for step in steps if "reward/mean" in step)
    return [
        Row("learning", f"{name}: gain in reward", _gain(steps), note=f"by step: {rewards}"),
        Row("learning", f"{name}: mismatch/abs_mean", mean("mismatch/abs_mean"), "nats"),
        at_most("learning", f"{name}: clipped tokens", mean("actor/pg_clipfrac"), 0.02, ""),
        Row("learning", f"{name}: grad_norm", mean("grad_norm")),
        Row("learning", f"{name}: tokens without a choice", mean("sampling/no_choice"), note="share, masked"),
    ]

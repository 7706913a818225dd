"""The quickstart with one update a step, as it is, and with mini-batches: what is earned for the same CPU time.

Half of the quickstart's steps with its model and configuration, and the same tasks and seeds; one daemon after the
other. What is earned by the CPU-minute at which the first of them ended says which learns faster: by all attempts until
then, and by those of the last three steps. CPU time, since a minute of a shared machine is not always worth the same.
"""

from statistics import fmean
from typing import Any

from benchmarks.common.learning import Learning, learned
from benchmarks.common.rows import Row, at_least

TITLE = "The quickstart with one update a step and with mini-batches"
_STEPS, _QUICK_STEPS = 13, 4
_LAST = 3


def run(quick: bool) -> list[Row]:
    steps, tasks = (_QUICK_STEPS, 4) if quick else (_STEPS, 10)
    settings = {"one update": "", "2 mini-batches": "algorithm = { mini_batches = 2 }"}
    rows = {name: learned(Learning(name, steps, tasks, policy=lines)) for name, lines in settings.items()}
    shared_s = min(made[-1]["cpu_s"] for made in rows.values())
    until = {name: [row for row in made if row["cpu_s"] <= shared_s] for name, made in rows.items()}
    found = [row for name in settings for row in _rows(name, rows[name], until[name], shared_s)]
    one, several = (fmean(_rewards(until[name])[-_LAST:]) for name in settings)
    what = f"reward at {shared_s / 60:.0f} CPU-minutes: 2 mini-batches less one update"
    return [*found, at_least("schedule", what, several - one, 0.0 if not quick else -0.1, "")]


def _rewards(steps: list[dict[str, Any]]) -> list[float]:
    return [step["reward/mean"] for step in steps if "reward/mean" in step]


def _rows(name: str, made: list[dict[str, Any]], until: list[dict[str, Any]], shared_s: float) -> list[Row]:
    by_step = ", ".join(f"{reward:.2f}" for reward in _rewards(made))
    of = f"of {len(until)} steps in {shared_s / 60:.1f} CPU-minutes"
    return [
        Row("schedule", f"{name}: a step", made[-1]["cpu_s"] / len(made), "CPU-s", note=f"rewards by step: {by_step}"),
        Row("schedule", f"{name}: reward, mean", fmean(_rewards(until)), note=of),
        Row("schedule", f"{name}: reward, last {_LAST} steps", fmean(_rewards(until)[-_LAST:]), note=of),
    ]

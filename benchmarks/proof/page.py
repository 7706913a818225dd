"""The page: a table of all runs, then each example with its curve and a rollout before and one after."""

from collections.abc import Mapping, Sequence
from typing import Literal

from benchmarks.proof.examples import EXAMPLES
from benchmarks.proof.outcome import Outcome

_BARS = "▁▂▃▄▅▆▇█"
_LONGEST = 300


def page(outcomes: Sequence[Outcome], remark: str = "") -> str:
    """Return the page as Markdown; ``remark`` is what else there is to know about the runs."""
    by_example: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_example.setdefault(outcome.example, []).append(outcome)
    counted = _UNSCORED if any(outcome.unscored for outcome in outcomes) else ""
    parts = [_INTRODUCTION, *filter(None, [counted, remark]), _table(by_example)]
    parts += [_section(name, runs) for name, runs in by_example.items()]
    missing = [name for name in EXAMPLES if name not in by_example]
    if missing:
        parts.append(f"## Not run\n\n{', '.join(missing)}.")
    return "\n\n".join(parts) + "\n"


_INTRODUCTION = """# Proof

What examples learned, each on one machine without a GPU. Held-out tasks are asked before and after training, at
temperature 0, and are never trained on. The interval is that of the paired difference (95 %, Bonett and Price 2012).
Every run takes the ordinary path: the example's own program, capture, gateway, transitions, trainer, publication.
Minutes are wall-clock time, including the start of the daemon and both evaluations.

    make proof EXAMPLE=search SEEDS=0

trains one of them and prints its row. Without `EXAMPLE`, all are trained, one after the other. Finished runs are kept
in `runs/proof`, and an interrupted run continues where it stopped. If the example or the number of steps has changed
since a run, that run is moved to `runs/proof/earlier` and repeated. The figures of each run are in `docs/proof/`; those
of an example that has changed since are left out."""
_UNSCORED = """Unscored are attempts that got no reward, because they failed, say; they count as wrong. A row that does
not say how many there are is of a run that did not count them."""


def _table(by_example: Mapping[str, Sequence[Outcome]]) -> str:
    names = ("example", "seed", "before", "after", "points, 95 %", "steps", "minutes", "reward by step", "where")
    head = f"| {' | '.join(names)} |\n" + "|---" * len(names) + "|"
    return "\n".join([head, *(row(outcome) for runs in by_example.values() for outcome in runs)])


def row(outcome: Outcome) -> str:
    difference = outcome.difference
    low, high = difference.interval
    cells = (
        f"[{outcome.example}](#{outcome.example})",
        str(outcome.seed),
        _successes(outcome, "before"),
        _successes(outcome, "after"),
        f"{100 * difference.difference:+.0f} ({100 * low:+.0f} to {100 * high:+.0f})",
        str(outcome.steps),
        f"{outcome.minutes:.0f}",
        curve(outcome.rewards),
        f"{outcome.machine}, {outcome.made}",
    )
    return f"| {' | '.join(cells)} |"


def _successes(outcome: Outcome, stage: Literal["before", "after"]) -> str:
    successes = outcome.before if stage == "before" else outcome.after
    unscored = "" if outcome.unscored is None else f", {outcome.unscored[stage]} unscored"
    return f"{sum(successes.values())} of {len(successes)}{unscored}"


def curve(rewards: Sequence[float | None]) -> str:
    """Return a bar for each step, a full one for a mean reward of 1; a step without attempts has a dot."""
    return "".join("·" if one is None else _BARS[min(7, max(0, int(8 * one)))] for one in rewards)


def _section(name: str, runs: Sequence[Outcome]) -> str:
    curves = [
        f"Seed {run.seed}, mean reward by step: "
        + ", ".join("-" if r is None else f"{r:.2f}" for r in run.rewards)
        + "."
        for run in runs
    ]
    parts = [f"## {name}", f"{EXAMPLES[name].what}.", *curves]
    if shown := next((run for run in runs if run.said_before and run.said_after), None):
        parts += [
            f"Held-out task `{shown.task}`: {_quoted(shown.question)}",
            f"Before: {_said(shown.said_before)}",
            f"After: {_said(shown.said_after)}",
        ]
    return "\n\n".join(parts)


def _said(calls: Sequence[str]) -> str:
    return " then ".join(map(_quoted, calls))


def _quoted(text: str) -> str:
    flat = " ⏎ ".join(line.strip() for line in text.splitlines() if line.strip()).replace("`", "'")
    return f"`{flat[:_LONGEST]}{'…' if len(flat) > _LONGEST else ''}`"

"""What ``lightning-trainer serve`` prints while it runs: a line for each new phase, step and problem."""

import asyncio
from bisect import bisect_right
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from lightning_trainer.cli.terminal.console import named
from lightning_trainer.config.file import USUAL_CONFIG
from lightning_trainer.daemon.policy_runtime import PolicyRuntime
from lightning_trainer.daemon.service import Daemon
from lightning_trainer.daemon.watching.progress import Phase
from lightning_trainer.metrics.row import StepMetrics
from lightning_trainer.store.places import StorePlace, place_of

_LOOK_AGAIN_S = 0.2


async def narrate(daemon: Daemon, console: Console, config_path: Path | None = None) -> None:
    """Print what is new at the daemon until canceled; with several policies, each line begins with the policy's name.

    Args:
        config_path: as named on the command line.
    """
    while daemon.url is None:
        await asyncio.sleep(_LOOK_AGAIN_S)
    if not daemon.config.policy:
        _say_what_is_recorded(daemon.url, place_of(daemon.config), config_path, console)
        return
    for line in (
        f"listening on {daemon.url}; engine and trainer are starting, calls wait until then",
        f"dashboard: {daemon.url}/",
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    several = len(daemon.policies) > 1
    narrators = [_Narrator(policy, console, f"{policy.policy.name}: " * several) for policy in daemon.policies]
    while True:
        for narrator in narrators:
            narrator.say_what_is_new()
        await asyncio.sleep(_LOOK_AGAIN_S)


def _say_what_is_recorded(url: str, store: StorePlace, config_path: Path | None, console: Console) -> None:
    """Print, on one screen, what a user needs to know to look at what is recorded before training."""
    config = named(config_path)
    lines = (
        ("", f"listening on {url} and recording; there is no [[policy]], so nothing is routed, served or trained"),
        ("what", "model calls, agents, tool calls and rewards of every program that sends its spans here"),
        ("where", str(store)),
        ("begin", f"LIGHTNING_ENDPOINT={url} lightning-trainer run --agent NAME -- python agent.py"),
        ("look", f"{url}/ in a browser; `lightning-trainer token{config}` prints the token to log in"),
        ("", f"lightning-trainer agents{config}: who made which calls, and what was not captured"),
        ("", f"lightning-trainer explain{config}: the newest rollouts, and one of them call by call"),
        ("", f"lightning-trainer build --for sft --out shown.jsonl{config}: a file of what was said"),
        (
            "train",
            f"add a [[policy]] to {config_path or USUAL_CONFIG} and start again: what was recorded stays readable, "
            "and training begins with what comes after",
        ),
    )
    for heading, text in lines:
        indent = "" if heading == "" and text.startswith("listening") else f"  {heading:<6} "
        console.print(f"{indent}{text}", markup=False, highlight=False, soft_wrap=True)


class _Narrator:
    """Prints what is new about one policy, and remembers what it has said."""

    def __init__(self, runtime: PolicyRuntime, console: Console, prefix: str) -> None:
        self._runtime = runtime
        self._console = console
        self._prefix = prefix
        self._said = ""
        self._told: set[str] = set()
        self._last_told: int | None = None

    def say_what_is_new(self) -> None:
        progress, policy = self._runtime.progress, self._runtime.policy
        phase = progress.phase
        line = f"{phase} {progress.detail}".strip()
        if phase is not Phase.STARTING and line != self._said:
            if phase is Phase.COLLECTING and progress.steps_done == 0:
                self._print(f"ready: policy {policy.name!r} for agents {', '.join(policy.agents)}")
            elif phase is not Phase.COLLECTING:
                self._print(line)
            self._said = line
        rows = self._runtime.metrics.rows
        if self._last_told is None and phase is not Phase.STARTING:
            self._last_told = rows[-1].step if rows else 0  # of an earlier run of the daemon
        if self._last_told is not None:
            for row in rows[bisect_right(rows, self._last_told, key=lambda row: row.step) :]:
                self._print(step_line(row))
                self._last_told = row.step
        for problem in progress.problems:
            if problem not in self._told:
                self._told.add(problem)
                self._console.print(f"{escape(self._prefix)}[yellow]note:[/] {escape(problem)}", soft_wrap=True)

    def _print(self, line: str) -> None:
        self._console.print(f"{self._prefix}{line}", markup=False, highlight=False, soft_wrap=True)


# A step in one line of the terminal: what was learned, how healthy the update was, where tokens and time went.

_SHOWN = (
    ("reward", "reward/mean", ".3f"),
    ("KL", "actor/ppo_kl", ".2g"),
    ("entropy", "entropy/sampled", ".3f"),
    ("clipped", "actor/pg_clipfrac", ".1%"),
    ("grad", "grad_norm", ".3g"),
    ("lr", "lr", ".2g"),
    ("stale", "staleness/mean", ".2g"),
    ("mismatch", "mismatch/abs_mean", ".2g"),
)
_STAGES = ("rollout", "build", "train", "publish")


def step_line(row: StepMetrics) -> str:
    """Return the line; what was not measured is left out."""
    values = row.values
    parts = [f"{label} {values[name]:{form}}" for label, name, form in _SHOWN if name in values]
    if "groups/total" in values:
        parts.append(f"groups {values.get('groups/kept', 0):.0f}/{values['groups/total']:.0f}")
    if "tokens/trained" in values:
        parts.append(
            f"tokens {values['tokens/trained']:,.0f} trained, {values['tokens/computed']:,.0f} unique, "
            f"{values['tokens/sequential']:,.0f} in all"
        )
    dropped = values.get("ledger/dropped", 0.0) + values.get("ledger/masked", 0.0)
    if dropped:
        parts.append(f"{dropped:,.0f} not trained")
    if times := [f"{stage} {values[f'seconds/{stage}']:.1f} s" for stage in _STAGES if f"seconds/{stage}" in values]:
        parts.append(", ".join(times))
    return f"step {row.step}: {' · '.join(parts)}"

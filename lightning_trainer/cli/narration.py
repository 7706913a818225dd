"""What ``lightning-trainer serve`` says while it runs: a line when a phase begins and for every step, and problems."""

import asyncio

from rich.console import Console
from rich.markup import escape

from lightning_trainer.daemon.policy_runtime import PolicyRuntime
from lightning_trainer.daemon.progress import Phase
from lightning_trainer.daemon.service import Daemon
from lightning_trainer.metrics.terminal import step_line

_LOOK_AGAIN_S = 0.2


async def narrate(daemon: Daemon, console: Console) -> None:
    """Look at the daemon until cancelled; where there are several policies, each line begins with its name."""
    while daemon.url is None:
        await asyncio.sleep(_LOOK_AGAIN_S)
    console.print(f"listening on {daemon.url}; engine and trainer are starting, calls wait until then")
    several = len(daemon.policies) > 1
    narrators = [_Narrator(policy, console, f"{policy.policy.name}: " * several) for policy in daemon.policies]
    while True:
        for narrator in narrators:
            narrator.say_what_is_new()
        await asyncio.sleep(_LOOK_AGAIN_S)


class _Narrator:
    """Remembers what was said of one policy."""

    def __init__(self, runtime: PolicyRuntime, console: Console, prefix: str) -> None:
        self._runtime = runtime
        self._console = console
        self._prefix = prefix
        self._said = ""
        self._told: set[str] = set()
        self._rows_told: int | None = None

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
        if self._rows_told is None and phase is not Phase.STARTING:
            self._rows_told = len(rows)  # those of an earlier run of the daemon
        if self._rows_told is not None:
            for row in rows[self._rows_told :]:
                self._print(step_line(row))
            self._rows_told = len(rows)
        for problem in progress.problems:
            if problem not in self._told:
                self._told.add(problem)
                self._console.print(f"{escape(self._prefix)}[yellow]note:[/] {escape(problem)}")

    def _print(self, line: str) -> None:
        self._console.print(f"{self._prefix}{line}", markup=False, highlight=False, soft_wrap=True)

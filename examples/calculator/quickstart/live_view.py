"""The quickstart in the terminal: what is happening now, every step so far, and the result.

On a terminal it repaints in place; piped into a file or a CI log it prints one line a step instead.
"""

import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .report import QuickstartReport

_BLOCKS = "▁▂▃▄▅▆▇█"
_STAGES = ("rollout", "train", "publish")


class LiveView:
    """Draws the daemon's status and the agent's events as they come in."""

    def __init__(self, console: Console, *, steps: int, heldout: int) -> None:
        self._console = console
        self._steps = steps
        self._heldout = heldout
        self._began = time.monotonic()
        self.ready_s: float | None = None
        """Seconds from the start until agents could call; None before that."""
        self._starting = "starting the daemon"
        self._status: dict[str, Any] = {}
        self._attempts: Counter[str] = Counter()
        self._solved: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._step_events: list[dict[str, Any]] = []
        self._evaluations: dict[str, tuple[int, int]] = {}
        self._now = "starting"
        self._in_step = 0
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._render)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        if self._console.is_terminal:
            self._live.stop()

    # -- what happens --------------------------------------------------------------------------------------------------

    def starting(self, line: str) -> None:
        """Show a line about the daemon's start."""
        self._starting = line

    def ready(self, status: dict[str, Any]) -> None:
        """Stop the clock of the start: agents can call from now on."""
        self.ready_s = time.monotonic() - self._began
        self._status = status
        self._say(f"engine and trainer are ready after {self.ready_s:.0f} s")

    def status(self, status: dict[str, Any]) -> None:
        """Replace the daemon's status with a newer one."""
        self._status = status

    def event(self, event: dict[str, Any]) -> None:
        """Count an event of the agent's runner: an attempt, a step, or an evaluation has ended."""
        match event["event"]:
            case "AttemptEnded":
                stage = event["stage"]
                if self._now != stage or event["step"] != (self._step_events[-1:] or [{}])[0].get("next"):
                    self._now = stage
                self._attempts[stage] += 1
                self._solved[stage] += event["reward"] == 1.0
                self._failed[stage] += event["error"] is not None
                self._in_step += stage == "train"
            case "StepEnded":
                self._step_events.append(event)
                self._in_step = 0
                self._say(self._step_line(event))
            case "EvaluationEnded":
                self._evaluations[event["stage"]] = (event["successes"], event["tasks"])
                share = 100 * event["successes"] / event["tasks"]
                self._say(f"held-out {event['stage']}: {event['successes']} of {event['tasks']} ({share:.0f} %)")

    def print_result(self, report: QuickstartReport, run_dir: Path) -> None:
        """Print all steps, the held-out tasks before and after with their intervals, and where the report is."""
        before, after = report.held_out.before, report.held_out.after
        self._console.print(self._step_table(len(report.steps)))
        table = Table(title="Held-out tasks", title_justify="left")
        for name in ("", "solved", "share", "95 % interval"):
            table.add_column(name, justify="left" if not name else "right")
        for name, row in (("before", before), ("after", after)):
            share = 100 * row.successes / row.n
            table.add_row(
                name,
                f"{row.successes} / {row.n}",
                f"{share:.1f} %",
                f"{100 * row.interval[0]:.1f} to {100 * row.interval[1]:.1f} %",
            )
        self._console.print(table)
        gain = 100 * (after.successes / after.n - before.successes / before.n)
        self._console.print(f"[bold]{gain:+.1f} points[/] in {time.monotonic() - self._began:.0f} s")
        files = f"{run_dir / 'report.html'} (open it in a browser), {run_dir / 'report.json'}"
        self._console.print(f"report: {files}", soft_wrap=True)

    # -- how it looks --------------------------------------------------------------------------------------------------

    def _say(self, line: str) -> None:
        if not self._console.is_terminal:
            line = f"[{time.monotonic() - self._began:6.0f} s] {line}"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _render(self) -> Panel:
        elapsed = time.monotonic() - self._began
        parts: list[Any] = [self._headline(elapsed)]
        if self.ready_s is None:
            parts.append(Text(self._starting, style="dim"))
        else:
            parts.append(self._present())
            if self._step_events:
                parts += [self._curve(), self._step_table(8)]
            for problem in self._status.get("problems", [])[-2:]:
                parts.append(Text(f"note: {problem}", style="yellow"))
        return Panel(Group(*parts), title="lightning-trainer quickstart", title_align="left")

    def _headline(self, elapsed: float) -> Text:
        line = Text(f"{elapsed:5.0f} s  ", style="dim")
        phase = self._status.get("phase", "starting")
        line.append(f"daemon: {phase}", style="bold cyan")
        if self._status:
            line.append(f"   serving version {self._status.get('live_version')}", style="bold")
        for stage, (successes, tasks) in self._evaluations.items():
            line.append(f"   held-out {stage}: {successes}/{tasks}", style="green" if stage == "after" else "white")
        return line

    def _present(self) -> Table:
        grid = Table.grid(padding=(0, 1))
        if self._now == "train" or self._step_events:
            total = self._status.get("group_size", 8) * self._status.get("groups_per_step", 8)
            done, label = self._in_step, f"step {len(self._step_events) + 1} of {self._steps}"
        if self._now in ("before", "after"):
            total, done, label = self._heldout, self._attempts[self._now], f"held-out {self._now}"
        elif not self._step_events and self._now != "train":
            total, done, label = self._heldout, 0, "held-out before"
        grid.add_row(label, ProgressBar(total=total, completed=min(done, total), width=40), f"{done}/{total} rollouts")
        return grid

    def _curve(self) -> Text:
        rewards = [event["reward_mean"] or 0.0 for event in self._step_events][-60:]
        bars = "".join(_BLOCKS[min(7, int(reward * 8))] for reward in rewards)
        return Text.assemble("reward  ", (bars, "green"), f"  {rewards[-1]:.2f}")

    def _step_line(self, event: dict[str, Any]) -> str:
        reward = "none" if event["reward_mean"] is None else f"{event['reward_mean']:.2f}"
        return (
            f"step {event['step']}/{self._steps}: reward {reward}, rollouts {event['rollout_s']:.1f} s, "
            f"training and publishing {event['wait_s']:.1f} s, serving version {event['live_version']}"
        )

    def _step_table(self, rows: int) -> Table:
        """Return a table of the newest steps that fits 76 columns, the inside of a panel in a terminal of 80."""
        table = Table(box=None, padding=(0, 0, 0, 1), pad_edge=False, header_style="dim")
        stages = (f"{name} s" for name in _STAGES)
        for name in ("step", "reward", "kept", "trained", "computed", "saving", *stages, "probe"):
            table.add_column(name, justify="right", no_wrap=True)
        versions = {version["version"]: version for version in self._status.get("versions", [])}
        for step in self._status.get("steps", [])[-rows:]:
            metrics, computed = step["metrics"], step["tokens_computed"]
            version = versions.get(step["step"], {})
            seconds = {**step["seconds"], "publish": version.get("publish_s")}
            table.add_row(
                str(step["step"]),
                f"{metrics['reward/mean']:.2f}" if "reward/mean" in metrics else "-",
                f"{metrics.get('groups/kept', 0):.0f}/{metrics.get('groups/total', 0):.0f}",
                f"{step['tokens_trained']:,}",
                f"{computed:,}",
                f"{step['tokens_sequential'] / computed:.0f}x" if computed else "-",
                *(f"{seconds[name]:.1f}" if seconds.get(name) is not None else "-" for name in _STAGES),
                _probe(version),
            )
        return table


def _probe(version: dict[str, Any]) -> str:
    """Return the outcome of a version's probe: the largest difference in nats, or that it was refused."""
    if version.get("state") == "refused":
        return "refused"
    difference = version.get("probe_max_abs")
    return "-" if difference is None else f"{difference:.1e}" if difference < 0.01 else f"{difference:.2f}"

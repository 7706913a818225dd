"""One thing that was looked at: what was found, and how to mend it where it is not right."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from rich.markup import escape
from rich.table import Table


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """It will work, less well, or may not under load."""
    FAILURE = "failure"
    """A start fails until it is mended."""


_STYLES = {State.OK: "green", State.WARNING: "yellow", State.FAILURE: "bold red"}


@dataclass(frozen=True, slots=True)
class Check:
    """Raises ValueError: something is not right and there is no word on how to mend it."""

    name: str
    state: State
    found: str
    """What is there, with the number."""
    mend: str | None = None
    """What to do: one sentence."""

    def __post_init__(self) -> None:
        if (self.state is State.OK) != (self.mend is None):
            raise ValueError(f"check {self.name!r} is {self.state} with mend {self.mend!r}: only ok needs none")


def ok(name: str, found: str) -> Check:
    return Check(name, State.OK, found)


def warning(name: str, found: str, mend: str) -> Check:
    return Check(name, State.WARNING, found, mend)


def failure(name: str, found: str, mend: str) -> Check:
    return Check(name, State.FAILURE, found, mend)


def render(checks: Sequence[Check]) -> Table:
    """Return a table for the terminal; what has to be done stands below what was found."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        style = _STYLES[check.state]
        mend = f"\n[{style}]→ {escape(check.mend)}[/]" if check.mend else ""
        table.add_row(f"[{style}]{check.state}[/]", escape(check.name), escape(check.found) + mend)
    return table


def summary(checks: Sequence[Check]) -> str:
    """Return one line: can it start."""
    failures = sum(check.state is State.FAILURE for check in checks)
    warnings = sum(check.state is State.WARNING for check in checks)
    noted = f"{warnings} warning{'s' if warnings != 1 else ''}"
    if failures:
        return f"[bold red]{failures} of {len(checks)} checks failed[/], {noted}: mend them before you start"
    return f"[green]ready to start[/]{f', {noted}' if warnings else ''}"

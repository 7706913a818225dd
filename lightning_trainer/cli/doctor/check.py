"""The checks of ``doctor``: what each found, and how to mend what is wrong."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from rich.markup import escape
from rich.table import Table


class State(StrEnum):
    """The outcome of a check."""

    OK = "ok"
    WARNING = "warning"
    """The daemon works, but less well, or may fail under load."""
    FAILURE = "failure"
    """The daemon does not start until this is mended."""


_STYLES = {State.OK: "green", State.WARNING: "yellow", State.FAILURE: "bold red"}


@dataclass(frozen=True, slots=True)
class Check:
    """One finding.

    Raises:
        ValueError: the state is ok and ``mend`` is given, or it is not ok and ``mend`` is missing.
    """

    name: str
    state: State
    found: str
    """What the check found, with the number."""
    mend: str | None = None
    """What to do: one sentence."""

    def __post_init__(self) -> None:
        if (self.state is State.OK) != (self.mend is None):
            raise ValueError(f"check {self.name!r} is {self.state} with mend {self.mend!r}: only ok needs none")


def ok(name: str, found: str) -> Check:
    """Return a check that found nothing to mend."""
    return Check(name, State.OK, found)


def warning(name: str, found: str, mend: str) -> Check:
    """Return a check whose finding does not keep the daemon from starting."""
    return Check(name, State.WARNING, found, mend)


def failure(name: str, found: str, mend: str) -> Check:
    """Return a check whose finding keeps the daemon from starting."""
    return Check(name, State.FAILURE, found, mend)


def render(checks: Sequence[Check]) -> Table:
    """Return a table for the terminal, with what to do below each finding."""
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
    """Return one line that says whether the daemon can start."""
    failures = sum(check.state is State.FAILURE for check in checks)
    warnings = sum(check.state is State.WARNING for check in checks)
    noted = f"{warnings} warning{'s' if warnings != 1 else ''}"
    if failures:
        return f"[bold red]{failures} of {len(checks)} checks failed[/], {noted}: mend them before you start"
    return f"[green]ready to start[/]{f', {noted}' if warnings else ''}"

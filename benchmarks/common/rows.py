"""What a section found: figures with their goals, the tables that show them, and the parser of ``--only``."""

import argparse
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Row:
    section: str
    what: str
    figure: float | None
    """None: could not be measured; the note says why."""
    unit: str = ""
    goal: str = ""
    """Empty if the figure is only for comparison."""
    met: bool | None = None
    """None if there is no goal, or nothing was measured."""
    note: str = ""


def at_most(
    section: str, what: str, figure: float | None, limit: float, unit: str, note: str = "", statistic: str = ""
) -> Row:
    met = None if figure is None else figure <= limit
    return Row(section, what, figure, unit, _goal("<=", limit, statistic), met, note)


def at_least(
    section: str, what: str, figure: float | None, limit: float, unit: str, note: str = "", statistic: str = ""
) -> Row:
    met = None if figure is None else figure >= limit
    return Row(section, what, figure, unit, _goal(">=", limit, statistic), met, note)


def _goal(sign: str, limit: float, statistic: str) -> str:
    """Return the text of a goal.

    Args:
        statistic: which of the measurements is judged, if there are several; shown next to the limit.
    """
    return f"{sign} {limit:g}" + (f" ({statistic})" if statistic else "")


def print_table(title: str, rows: Sequence[Row]) -> None:
    table = Table("figure", "", "unit", "goal", "met", "note", title=title, title_justify="left")
    table.columns[0].header, table.columns[1].header = "what", "figure"
    table.columns[1].justify = "right"
    table.columns[5].overflow = "fold"
    for row in rows:
        met = "" if row.met is None else "yes" if row.met else "[bold red]NO[/]"
        table.add_row(escape(row.what), _number(row.figure), row.unit, row.goal, met, escape(row.note))
    console = Console()
    # A pipe has no width: wide enough that no figure is cut off.
    console.width = max(console.width, 150)
    console.print(table)


def _number(figure: float | None) -> str:
    if figure is None:
        return "-"
    if float(figure).is_integer() and abs(figure) < 1e12:
        return f"{int(figure):,}"
    if abs(figure) < 0.001:
        return f"{figure:.1e}"
    return f"{figure:,.3f}" if abs(figure) < 100 else f"{figure:,.0f}"


def as_json(rows: Sequence[Row]) -> list[dict]:
    return [asdict(row) for row in rows]


def among(sections: Collection[str]) -> Callable[[str], list[str]]:
    """Return a parser of names separated by commas; argparse refuses an argument with none or an unknown one."""

    def read(text: str) -> list[str]:
        wanted = [name.strip() for name in text.split(",") if name.strip()]
        if not wanted or set(wanted) - set(sections):
            raise argparse.ArgumentTypeError(f"{text!r}: choose from {', '.join(sections)}")
        return wanted

    return read

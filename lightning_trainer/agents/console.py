"""The report for a terminal: a table if it fits without breaking a name, else one block per agent."""

from collections.abc import Callable, Iterable, Iterator

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from lightning_trainer.agents.report import AgentRow, AgentsReport
from lightning_trainer.agents.uncaptured import in_words, unread_in_words
from lightning_trainer.types import Fidelity

_WIDEST = 10_000
"""Width at which a table is measured to find out how many columns it needs."""
NO_NAME = "(no name)"


def show(report: AgentsReport, console: Console) -> None:
    """Print the report."""
    if report["agents"]:
        _show_agents(report, console)
    else:
        console.print("no agent has made a call yet: nothing of a model call is in this store")
    for instrumentation, count in report["unread"].items():
        console.print(unread_in_words(instrumentation, count), markup=False, highlight=False)
    for program in report["programs"]:
        processes = f"{program['processes']} process{'es' * (program['processes'] != 1)}"
        console.print(f"[bold]{escape(program['program'])}[/] ({processes}) could not capture:", highlight=False)
        for reason, count in program["reasons"].items():
            console.print(f"  {count:,} {escape(in_words(reason))}", highlight=False)


def _show_agents(report: AgentsReport, console: Console) -> None:
    table = _table(report)
    if Measurement.get(console, console.options.update(max_width=_WIDEST), table).minimum <= console.width:
        console.print(table)
    else:
        for row in report["agents"]:
            _block(row, report, console)
    for row in report["agents"]:
        for sentence in row["not_captured"]:
            console.print(f"[bold]{escape(name(row))}[/]: {escape(sentence)}", highlight=False)
    if report["policies"] is None:
        console.print("a configuration says which policy claims an agent: --config names one", style="dim")
    elif not report["policies"]:
        console.print(
            "everything is recorded and nothing trained: there is no [[policy]] that claims an agent yet",
            style="dim",
            markup=False,
        )


def name(row: AgentRow) -> str:
    """Return an agent's name for display."""
    return row["agent"] or NO_NAME


def _table(report: AgentsReport) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    grades = [grade for grade in Fidelity if grade is not Fidelity.VERIFIED or _any(report, grade)]
    served = not report["policies"]
    for heading, words_of in (
        ("agent", lambda row: [name(row)]),
        ("served by" if served else "claimed by", lambda row: _policy(row, report).split()),
    ):
        table.add_column(heading, min_width=_longest(report, words_of, heading))
    for heading in ("calls", "prompt", "sampled", *(_HEADINGS[grade] for grade in grades)):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading, words_of in (("tools", _tools), ("known by", _known_by)):
        table.add_column(heading, min_width=_longest(report, words_of, heading))
    for row in report["agents"]:
        table.add_row(
            escape(name(row)),
            escape(_policy(row, report)),
            *(_short(count) for count in (row["calls"], row["prompt_tokens"], row["sampled_tokens"])),
            *(_short(row["fidelity"][grade]) for grade in grades),
            escape(", ".join(_tools(row))) or "-",
            escape(", ".join(_known_by(row))) or "-",
        )
    return table


_HEADINGS = {Fidelity.EXACT: "exact", Fidelity.VERIFIED: "verified", Fidelity.TEXT_ONLY: "text"}


def _any(report: AgentsReport, grade: Fidelity) -> bool:
    return any(row["fidelity"][grade] for row in report["agents"])


def _block(row: AgentRow, report: AgentsReport, console: Console) -> None:
    grades = ", ".join(f"{count:,} {grade.replace('_', ' ')}" for grade, count in row["fidelity"].items() if count)
    lines = (
        ("served by" if not report["policies"] else "claimed by", _policy(row, report)),
        ("calls", f"{row['calls']:,}{f' ({grades})' if grades else ''}"),
        ("tokens", f"{row['prompt_tokens']:,} prompt, {row['sampled_tokens']:,} sampled"),
        ("tools", ", ".join(_tools(row)) or "-"),
        ("known by", ", ".join(row["recognised_by"]) or "-"),
    )
    console.print(f"[bold]{escape(name(row))}[/]", highlight=False)
    for heading, text in lines:
        console.print(f"  {heading}: {escape(text)}", highlight=False)


def _policy(row: AgentRow, report: AgentsReport) -> str:
    if not report["policies"]:
        return ", ".join(row["served_by"]) or "-"
    return row["policy"] or "none"


def _tools(row: AgentRow) -> Iterator[str]:
    shown = row["tools"][:5]
    yield from shown
    if len(row["tools"]) > len(shown):
        yield f"and {len(row['tools']) - len(shown)} more"


def _longest(report: AgentsReport, words_of: Callable[[AgentRow], Iterable[str]], heading: str) -> int:
    """Return the width that a table's column needs to wrap only between names (and commas)."""
    return max(len(heading), *(len(word) + 1 for row in report["agents"] for word in words_of(row)), 1)


def _known_by(row: AgentRow) -> list[str]:
    return row["recognised_by"]


def _short(count: int) -> str:
    """Format a count in at most five characters: the table is for people, and the JSON has the exact number."""
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= 10 * size:
            return f"{count / size:.1f}{unit}" if count < 100 * size else f"{count // size}{unit}"
    return str(count)

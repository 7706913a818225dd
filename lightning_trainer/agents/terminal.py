"""The report for a terminal: a table where there are 80 columns, one block an agent where there are fewer."""

from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lightning_trainer.agents.report import AgentRow, AgentsReport

_TABLE_FROM = 80
NO_NAME = "(no name)"


def show(report: AgentsReport, console: Console) -> None:
    """Print the report."""
    if not report["agents"]:
        console.print("no agent has made a call yet: nothing of a model call is in this store")
        return
    if console.width >= _TABLE_FROM:
        console.print(_table(report))
    else:
        for row in report["agents"]:
            _block(row, report, console)
    for row in report["agents"]:
        for sentence in row["not_captured"]:
            console.print(f"[bold]{escape(name(row))}[/]: {escape(sentence)}", highlight=False)
    if report["policies"] is None:
        console.print("which policy claims an agent is in the configuration: name it with --config", style="dim")


def name(row: AgentRow) -> str:
    return row["agent"] or NO_NAME


def _table(report: AgentsReport) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading, numeric in (
        ("agent", False),
        ("policy", False),
        ("calls", True),
        ("prompt", True),
        ("sampled", True),
        ("exact/ver/text", True),
        ("tools", False),
        ("known by", False),
    ):
        table.add_column(heading, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold")
    for row in report["agents"]:
        table.add_row(
            escape(name(row)),
            escape(_policy(row, report)),
            f"{row['calls']:,}",
            _short(row["prompt_tokens"]),
            _short(row["sampled_tokens"]),
            "/".join(_short(count) for count in row["fidelity"].values()),
            escape(", ".join(_tools(row))) or "-",
            escape(", ".join(row["recognised_by"])) or "-",
        )
    return table


def _block(row: AgentRow, report: AgentsReport, console: Console) -> None:
    grades = ", ".join(f"{count:,} {grade.replace('_', ' ')}" for grade, count in row["fidelity"].items() if count)
    lines = (
        ("policy", _policy(row, report)),
        ("calls", f"{row['calls']:,}{f' ({grades})' if grades else ''}"),
        ("tokens", f"{row['prompt_tokens']:,} prompt, {row['sampled_tokens']:,} sampled"),
        ("tools", ", ".join(_tools(row)) or "-"),
        ("known by", ", ".join(row["recognised_by"]) or "-"),
    )
    console.print(f"[bold]{escape(name(row))}[/]", highlight=False)
    for heading, text in lines:
        console.print(f"  {heading}: {escape(text)}", highlight=False)


def _policy(row: AgentRow, report: AgentsReport) -> str:
    if report["policies"] is None:
        return f"served by {', '.join(row['served_by'])}" if row["served_by"] else "-"
    return row["policy"] or "claimed by none"


def _tools(row: AgentRow) -> Iterator[str]:
    shown = row["tools"][:5]
    yield from shown
    if len(row["tools"]) > len(shown):
        yield f"and {len(row['tools']) - len(shown)} more"


def _short(count: int) -> str:
    """A count in at most five characters: it is a table for people, and the exact number is in the JSON."""
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= 10 * size:
            return f"{count / size:.1f}{unit}" if count < 100 * size else f"{count // size}{unit}"
    return str(count)

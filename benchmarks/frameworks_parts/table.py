"""The table of ``docs/frameworks.md``: made anew row by row, so that some frameworks can be tried again alone."""

from collections.abc import Mapping
from pathlib import Path

from frameworks_parts.known import KNOWN, Framework
from frameworks_parts.verdict import Cell
from frameworks_parts.ways import COLUMNS

BEGIN, END = "<!-- table: make frameworks -->", "<!-- end of table -->"


def row(framework: Framework, cells: Mapping[str, Cell | str]) -> str:
    """Return one line; a cell that is a string says why there is none."""
    shown = (str(cells[column]).replace("|", "\\|").replace("\n", " ")[:160] for column in COLUMNS)
    return f"| {framework.title} {framework.version or ''} | {' | '.join(shown)} |".replace("  ", " ")


def write(page: Path, rows: Mapping[str, str]) -> None:
    """Put rows, by framework, into the page; those of other frameworks stay.

    Raises:
        ValueError: the page has no place for the table.
    """
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    old, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no place for the table: put {BEGIN} and {END} there")
    lines = {one.name: line for one in KNOWN for line in old.splitlines() if line.startswith(f"| {one.title} ")}
    lines |= rows
    head = f"| framework | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 1)}"
    body = "\n".join(lines[one.name] for one in KNOWN if one.name in lines)
    page.write_text(f"{before}{BEGIN}\n{head}\n{body}\n{END}{after}", encoding="utf-8")

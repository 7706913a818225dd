"""The tables of ``docs/frameworks.md``: written row by row, so that some frameworks can be tried again alone."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.frameworks import beside
from benchmarks.frameworks.known import KNOWN, Framework
from benchmarks.frameworks.trying import Tried
from benchmarks.frameworks.ways import COLUMNS

END = "<!-- end of table -->"
FRAMEWORKS, BESIDE = "<!-- table: make frameworks -->", "<!-- table: make frameworks, beside others -->"
_LONGEST = 160


def row(framework: Framework, cells: Mapping[str, object], columns: Sequence[str]) -> str:
    """Return one line of a table."""
    shown = (str(cells[column]).replace("|", "\\|").replace("\n", " ")[:_LONGEST] for column in columns)
    return f"| {framework.title} {framework.version or ''} | {' | '.join(shown)} |".replace("  ", " ")


def rows_of(one: Tried) -> list[str]:
    """Return a framework's row of each table that has one."""
    rows = [row(one.framework, one.cells, COLUMNS)]
    return rows if one.beside is None else [*rows, row(one.framework, one.beside.cells(), beside.COLUMNS)]


def write(page: Path, done: Sequence[Tried]) -> None:
    """Put rows into the page; the rows of other frameworks stay.

    Raises:
        ValueError: the page has no place for a table.
    """
    text = page.read_text(encoding="utf-8")
    text = _written(page, text, FRAMEWORKS, ("framework", *COLUMNS), ((one.framework, rows_of(one)[0]) for one in done))
    others = ((one.framework, rows_of(one)[1]) for one in done if one.beside is not None)
    page.write_text(_written(page, text, BESIDE, ("watched by", *beside.COLUMNS), others), encoding="utf-8")


def _written(page: Path, text: str, begin: str, head: Sequence[str], rows: Iterable[tuple[Framework, str]]) -> str:
    before, found, rest = text.partition(begin)
    old, end, after = rest.partition(END)
    if not found or not end:
        raise ValueError(f"{page} has no place for the table: put {begin} and {END} there")
    lines = {one.name: line for one in KNOWN for line in old.splitlines() if line.startswith(f"| {one.title} ")}
    lines |= {framework.name: line for framework, line in rows}
    heading = f"| {' | '.join(head)} |\n|{'---|' * len(head)}"
    body = "\n".join(lines[one.name] for one in KNOWN if one.name in lines)
    return f"{before}{begin}\n{heading}\n{body}\n{END}{after}"

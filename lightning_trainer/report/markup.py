"""The pieces of HTML that a page is made of. Arguments named html are finished HTML; any other text is escaped here."""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib.resources import files

_WIDE_PX, _NARROW_PX = (860, 280), (340, 230)
_NARROW_SPACE = "\u202f"


def section(title: str, *html: str, css: str = "") -> str:
    """Return a section with its heading; ``css`` is its class."""
    attribute = f' class="{css}"' if css else ""
    return f"<section{attribute}><h2>{escape(title)}</h2>{''.join(html)}</section>"


def paragraph(*html: str) -> str:
    """Join finished sentences into one paragraph, leaving out empty ones."""
    return f"<p>{' '.join(filter(None, html))}</p>"


def folded(summary: str, html: str) -> str:
    """Return HTML that is hidden until the reader clicks on its summary."""
    return f"<details><summary>{escape(summary)}</summary>{html}</details>"


def table(head: Sequence[str], html_rows: Sequence[Sequence[str]], *, text_columns: int = 1) -> str:
    """Return a table; columns after the first ``text_columns`` hold numbers."""

    def row(tag: str, cells: Sequence[str]) -> str:
        numbered = "".join(
            f"<{tag}{'' if column < text_columns else ' class=num'}>{cell}</{tag}>" for column, cell in enumerate(cells)
        )
        return f"<tr>{numbered}</tr>"

    body = "".join(row("td", cells) for cells in html_rows)
    return (
        f'<div class="scroll"><table><thead>{row("th", [escape(name) for name in head])}</thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def for_both_widths(draw: Callable[[int, int], str], wide: tuple[int, int] = _WIDE_PX) -> str:
    """Return a chart drawn for a desktop and for a phone; the style sheet shows one, so text is never scaled."""
    return f'<div class="wide">{draw(*wide)}</div><div class="narrow">{draw(*_NARROW_PX)}</div>'


def percent(share: float) -> str:
    """Return a share in [0, 1] as a whole percentage."""
    return f"{100 * share:.0f}{_NARROW_SPACE}%"


def duration(seconds: float) -> str:
    """Return a duration as ``2 min 05 s``, or ``5 s`` below a minute."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def figure(value: float | None, pattern: str, unit: str = "") -> str:
    """Return a formatted number, or a dash if it was not measured."""
    return "–" if value is None else f"{value:{pattern}}{unit}"


# The frame of a page: one file that a browser opens from disk, in light and dark, on a desktop and on a phone.
#
# The page fetches nothing: style, charts, and the few lines of script are inside.

_HEAD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
"""


def document(title: str, html_sections: Iterable[str]) -> str:
    """Return a whole page. The sections are finished HTML; the title is escaped here."""
    style, script = asset("page.css"), asset("page.js")
    return "".join(
        [
            _HEAD,
            f"<title>{escape(title)}</title>",
            f"<style>\n{style}</style></head>\n<body><main>\n",
            "\n".join(html_sections),
            f'\n</main><div id="about" role="status" hidden></div>\n<script>\n{script}</script></body></html>\n',
        ]
    )


def asset(name: str) -> str:
    """Return the style sheet (``page.css``) or the script (``page.js``) of every page."""
    return files("lightning_trainer.report").joinpath("assets", name).read_text(encoding="utf-8")

"""The few pieces of HTML that the page is made of. Arguments called html are ready; everything else is escaped here."""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib.resources import files

_WIDE_PX, _NARROW_PX = (860, 280), (340, 230)
_NARROW_SPACE = "\u202f"


def section(title: str, *html: str, css: str = "") -> str:
    attribute = f' class="{css}"' if css else ""
    return f"<section{attribute}><h2>{escape(title)}</h2>{''.join(html)}</section>"


def paragraph(*html: str) -> str:
    return f"<p>{' '.join(filter(None, html))}</p>"


def folded(summary: str, html: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{html}</details>"


def table(head: Sequence[str], html_rows: Sequence[Sequence[str]], *, text_columns: int = 1) -> str:
    """Columns after the first ``text_columns`` hold numbers."""

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
    """The same chart for a desk and for a phone; the style sheet shows one, so letters are never scaled."""
    return f'<div class="wide">{draw(*wide)}</div><div class="narrow">{draw(*_NARROW_PX)}</div>'


def percent(share: float) -> str:
    return f"{100 * share:.0f}{_NARROW_SPACE}%"


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def figure(value: float | None, pattern: str, unit: str = "") -> str:
    """A number, or a dash where nothing was measured."""
    return "–" if value is None else f"{value:{pattern}}{unit}"


# The frame of a page: one file that a browser opens from disk, in light and dark, on a desk and on a phone.
#
# Nothing is fetched: style, charts and the few lines of script are inside.

_HEAD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
"""


def document(title: str, html_sections: Iterable[str]) -> str:
    """Return a whole page. The sections are ready HTML; the title is escaped here."""
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

"""The frame of a page: one file that a browser opens from disk, in light and dark, on a desk and on a phone.

Nothing is fetched: style, charts and the few lines of script are inside.
"""

from collections.abc import Iterable
from html import escape
from importlib.resources import files

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

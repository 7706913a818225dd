"""Templates and security headers: nothing inline, nothing from elsewhere, nothing in another page's frame.

Templates escape the markup in models' and tools' text. Characters that act without being seen remain: control
characters, and those that change the direction of the text after them (Trojan Source, CVE-2021-42574). They are shown
as visible signs.
"""

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from lightning_trainer import __version__
from lightning_trainer.explain.finding import counted
from lightning_trainer.report.markup import asset, for_both_widths

SECURITY = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not no-referrer: with it, browsers send "Origin: null" with our own forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_STATIC_TYPES = {"dashboard.css": "text/css", "dashboard.js": "text/javascript", "favicon.svg": "image/svg+xml"}


class Pages:
    """Renders the templates of this package."""

    def __init__(self) -> None:
        self._environment = Environment(
            loader=PackageLoader("lightning_trainer.dashboard"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=finalize,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {
            "number": number,
            "moment": moment,
            "duration": duration,
            "bytes": amount_of_bytes,
            "short": shortened,
            "counted": counted,
            "exact": exact,
        }
        self._environment.globals |= {"release": __version__, "now": time.time}

    def html(
        self, template: str, *, status: int = 200, headers: dict[str, str] | None = None, **values: Any
    ) -> Response:
        """Render a template; ``headers`` are added to the security headers, or replace them."""
        text = self._environment.get_template(template).render(**values)
        return HTMLResponse(text, status, headers={**SECURITY, **(headers or {})})


def static(name: str) -> Response | None:
    """Return a static file; None if there is none. Style sheet and script begin with those of the reports."""
    kind = _STATIC_TYPES.get(name)
    if kind is None:
        return None
    own = files("lightning_trainer.dashboard").joinpath("static", name).read_text(encoding="utf-8")
    shared = {"dashboard.css": "page.css", "dashboard.js": "page.js"}.get(name)
    text = own if shared is None else f"{asset(shared)}\n{own}"
    headers = {**SECURITY, "cache-control": "no-cache"}
    return Response(text, media_type=f"{kind}; charset=utf-8", headers=headers)


def both_widths(draw: Callable[[int, int], str], wide: tuple[int, int] = (1150, 260)) -> Markup:
    """Return a chart for wide and for narrow screens; an empty text if nothing was drawn."""
    html = for_both_widths(draw, wide)
    return Markup(html if "<svg" in html else "")


def exact(text: str) -> Markup:
    """Return a text with its hidden characters, for a form that sends it back: without them it is another name."""
    return escape(text.encode("utf-8", "replace").decode())


def number(value: float | None, pattern: str = "") -> str:
    """Return a number as tables show it; a dash if nothing was measured."""
    if value is None:
        return "–"
    if pattern:
        return format(value, pattern)
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:.4g}" if abs(value) < 1e6 else f"{value:,.0f}"


def moment(at_ns: int | None) -> Markup:
    """Return a time in UTC, with the exact time as its tooltip; the script shows it in the reader's time zone."""
    if at_ns is None:
        return Markup("–")
    try:
        at = datetime.fromtimestamp(at_ns / 1e9, UTC)
    except (OverflowError, ValueError, OSError):
        return Markup('<span title="{}">?</span>').format(at_ns)
    exact = f"{at:%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(at.isoformat(), exact, f"{at:%Y-%m-%d %H:%M} UTC")


def duration(seconds: float | None) -> str:
    """Return a number of seconds as tables show it, in ms, s, min, or h."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def amount_of_bytes(amount: float | None) -> str:
    """Return a number of bytes as tables show it, in B, KiB, MiB, or GiB."""
    if amount is None:
        return "–"
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.3g} {unit}" if unit != "B" else f"{amount:.0f} B"
        amount /= 1024
    return f"{amount:.3g} GiB"


LONGEST = 20_000
"""Characters of one text on a page; the rest is behind a link."""
_HIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def visible(text: str) -> str:
    """Return the text with every hidden character replaced by a visible sign."""
    return _HIDDEN.sub(_sign, text)


def visible_markup(html: str) -> Markup:
    """Return our own HTML, whose texts are escaped already, with hidden characters made visible."""
    return Markup(visible(html))


def finalize(value: object) -> object:
    """Return a value as templates show it: hidden characters in a string become visible, None becomes a dash."""
    if isinstance(value, Markup):
        return value
    if value is None:
        return "–"
    return visible(value) if isinstance(value, str) else value


def shortened(text: str, longest: int = LONGEST) -> tuple[str, int]:
    """Return the beginning of a text, and how many characters are left out."""
    return (text, 0) if len(text) <= longest else (text[:longest], len(text) - longest)


def _sign(match: re.Match[str]) -> str:
    return f"⟨U+{ord(match.group()):04X}⟩"

"""Text of models and tools as a page may show it: nothing in it is invisible, reverses text, or cannot be encoded.

Templates escape markup. What remains are characters that act without being seen: control characters, and those that
change the direction of what follows (Trojan Source, CVE-2021-42574).
"""

import re

from markupsafe import Markup

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
    """What the templates do with every value: strings become visible, None becomes a dash."""
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

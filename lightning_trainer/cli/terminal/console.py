"""The console that every command prints with."""

import json
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment


class TerminalConsole(Console):
    """A console of rich's whose text, wherever it comes from, cannot command the terminal.

    What rich itself says to the terminal (colors, the cursor of a live display) is told apart from text and stays.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or (segment.text.isascii() and segment.text.isprintable()):
                yield segment
            else:
                yield Segment(visible(segment.text), segment.style)


# Characters that a terminal would obey, as characters that it shows.
#
# Control characters (C0, C1, delete) begin sequences that clear the screen, change the title or write to the
# clipboard (OSC 52); those that turn the direction of writing around show another text than the one that is there.

_FIRST_PICTURE = 0x2400
"""Unicode has a picture of each control character of ASCII, one column wide."""
_DELETE, _ITS_PICTURE = 0x7F, 0x2421
_UNKNOWN = 0xFFFD
_TURNING = (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C)
_LINES = (0x2028, 0x2029)
_KEPT = (ord("\n"), ord("\t"))

_VISIBLE: dict[int, int] = {
    **{code: _FIRST_PICTURE + code for code in range(0x20) if code not in _KEPT},
    _DELETE: _ITS_PICTURE,
    **dict.fromkeys((*range(0x80, 0xA0), *_TURNING, *_LINES, *range(0xD800, 0xE000)), _UNKNOWN),
}


def visible(text: str) -> str:
    """Return the text with nothing in it that a terminal obeys, but for line ends and tabs."""
    return text if text.isascii() and text.isprintable() else text.translate(_VISIBLE)


def visible_json(document: Any) -> str:
    """Return JSON in which such characters are escaped, so that it still says the same."""
    text = json.dumps(document, indent=2, ensure_ascii=False)
    return "".join(f"\\u{ord(one):04x}" if ord(one) in _VISIBLE else one for one in text)

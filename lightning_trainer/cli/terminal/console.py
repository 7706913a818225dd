"""The console that every command prints with."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from lightning_trainer.cli.terminal.visible import visible


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

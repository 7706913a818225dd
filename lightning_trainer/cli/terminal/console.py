"""The console that every command prints with, and how a command ends after a user's mistake: with one sentence on
standard error, and an exit status.
"""

import importlib.util
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment

from lightning_trainer.cli.light import needs, needs_unix
from lightning_trainer.errors import CANNOT_WRITE, ConfigError, LightningError, MissingExtraError

_PIPED_WIDTH = 160
"""Columns of output to a file or another program: folded at rich's 80, rows could not be searched."""


class TerminalConsole(Console):
    """A rich console whose text, wherever it comes from, is shown as it is and cannot command the terminal.

    What rich itself says to the terminal (colors, the cursor of a live display) is told apart from text and stays.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(emoji=False, **options)  # else the id a:b:c would be shown with a picture in place of :b:
        if not self.is_terminal and "COLUMNS" not in os.environ and "width" not in options:
            self.width = _PIPED_WIDTH

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or (segment.text.isascii() and segment.text.isprintable()):
                yield segment
            else:
                yield Segment(visible(segment.text), segment.style)


# Characters that a terminal would obey, as characters that it shows.
#
# Control characters (C0, C1, delete) begin sequences that clear the screen, change the title or write to the
# clipboard (OSC 52); characters that change the direction of writing make a text look like another one.

_FIRST_PICTURE = 0x2400
"""First of Unicode's pictures of ASCII's control characters, each one column wide."""
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
    """Return the text with nothing in it that a terminal obeys, except line ends and tabs."""
    return text if text.isascii() and text.isprintable() else text.translate(_VISIBLE)


def visible_json(document: Any, indent: int | None = 2) -> str:
    """Return JSON in which what a terminal obeys is escaped, so it means the same; without indent, on one line."""
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    return "".join(f"\\u{ord(one):04x}" if ord(one) in _VISIBLE else one for one in text)


# Options that many commands have, and how their values are read.

Configuration: TypeAlias = Annotated[Path | None, typer.Option(help="The configuration file; default: lightning.toml.")]
Endpoint: TypeAlias = Annotated[
    str | None,
    typer.Option(
        envvar="LIGHTNING_ENDPOINT",
        help="URL of a daemon elsewhere; default: the configuration's, or its store. With --config the variable does "
        "not count.",
    ),
]


def check_unix(command: str) -> None:
    """Check for Linux or macOS. Raises ConfigError: this is Windows, which lacks what the command needs."""
    if sys.platform == "win32":
        raise ConfigError(needs_unix(command))


def named(config_path: Path | None) -> str:
    """Return the option, quoted for a shell, that names this command's configuration to another one; empty if none."""
    return "" if config_path is None else f" --config {shlex.quote(str(config_path))}"


_Choice = TypeVar("_Choice", bound=StrEnum)


def one_of(kind: type[_Choice], option: str, value: str) -> _Choice:
    """Return the member of that name.

    Raises:
        ConfigError: there is no such member; the message lists all.
    """
    # The option itself takes any text, so that the enumeration is imported only for the command that needs it.
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"{option} {value}: there are {', '.join(kind)}") from None


_EXIT_USER_ERROR = 2
_EXIT_INTERRUPTED = 130


@contextmanager
def one_sentence(status: Callable[[LightningError], int] = lambda _: _EXIT_USER_ERROR) -> Iterator[None]:
    """Print a user's mistake as one sentence on stderr, not as a traceback; ``[daemon]`` in it is not markup."""
    try:
        yield
    except LightningError as error:
        TerminalConsole(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False)
        sys.exit(status(error))
    except ModuleNotFoundError as error:
        # A package of an extra that is not installed. Any other missing module, such as one of ours, is our bug.
        missing = (error.name or "").partition(".")[0]
        if not missing or missing.startswith("lightning_") or importlib.util.find_spec(missing) is not None:
            raise
        sentence = needs(sys.argv[1], missing)
        TerminalConsole(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {escape(sentence)}", highlight=False)
        sys.exit(status(MissingExtraError(sentence)))
    except ValueError as error:
        from lightning_instrumentation.errors import ConfigurationError  # imported only if it is needed

        if not isinstance(error, ConfigurationError):
            raise
        TerminalConsole(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False)
        sys.exit(status(ConfigError(str(error))))
    except OSError as error:
        if error.errno not in CANNOT_WRITE:
            raise
        sentence = f"{error.filename2 or error.filename or 'a file'} cannot be written: {error.strerror}"
        TerminalConsole(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {escape(sentence)}", highlight=False)
        sys.exit(status(LightningError(sentence)))
    except KeyboardInterrupt:
        TerminalConsole(stderr=True).print("interrupted")
        sys.exit(_EXIT_INTERRUPTED)

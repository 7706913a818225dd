"""A mistake of the user's is one sentence on standard error and an exit status, for every command."""

import errno
import importlib.util
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

import typer
from rich.markup import escape

from lightning_trainer.cli.light import needs
from lightning_trainer.cli.terminal.console import TerminalConsole
from lightning_trainer.errors import ConfigError, LightningError, MissingExtraError

# Options that many commands have, and how their texts are read.

Configuration: TypeAlias = Annotated[Path | None, typer.Option(help="The configuration file; default: lightning.toml.")]


def named(config_path: Path | None) -> str:
    """Return the option that names a configuration to another command as it was named to this one, for a shell."""
    return "" if config_path is None else f" --config {shlex.quote(str(config_path))}"


_Choice = TypeVar("_Choice", bound=StrEnum)


def one_of(kind: type[_Choice], option: str, value: str) -> _Choice:
    """Return the member of that name.

    Raises:
        ConfigError: there is none; the message lists those there are.
    """
    # The kinds are not imported for every command's sake, so the option itself takes any text.
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"{option} {value}: there are {', '.join(kind)}") from None


_EXIT_USER_ERROR = 2
_CANNOT_WRITE = (
    *(errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT),
    *(errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG),
)
"""A folder that is read-only, someone else's, or full; a file where a folder should be, or the reverse."""
_EXIT_INTERRUPTED = 130


@contextmanager
def one_sentence(status: Callable[[LightningError], int] = lambda _: _EXIT_USER_ERROR) -> Iterator[None]:
    """A mistake of the user's is one sentence on stderr, not a traceback; ``[daemon]`` in it is not markup."""
    try:
        yield
    except LightningError as error:
        TerminalConsole(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False)
        sys.exit(status(error))
    except ModuleNotFoundError as error:
        # Of an extra that is not installed. Of ours none is missing: that would be a mistake of ours, as is any other.
        missing = (error.name or "").partition(".")[0]
        if not missing or missing.startswith("lightning_") or importlib.util.find_spec(missing) is not None:
            raise
        sentence = needs(sys.argv[1], missing)
        TerminalConsole(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {escape(sentence)}", highlight=False)
        sys.exit(status(MissingExtraError(sentence)))
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        sentence = f"{error.filename2 or error.filename or 'a file'} cannot be written: {error.strerror}"
        TerminalConsole(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {escape(sentence)}", highlight=False)
        sys.exit(status(LightningError(sentence)))
    except KeyboardInterrupt:
        TerminalConsole(stderr=True).print("interrupted")
        sys.exit(_EXIT_INTERRUPTED)

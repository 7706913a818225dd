"""Options that many commands have, and how their texts are read."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

import typer

from lightning_trainer.errors import ConfigError

Configuration: TypeAlias = Annotated[Path | None, typer.Option(help="The configuration file; else lightning.toml.")]

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

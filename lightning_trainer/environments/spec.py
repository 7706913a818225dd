"""The syntax ``frozenlake:4x4?slippery=true``: an environment, its variant, and its options."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from lightning_trainer.environments.errors import UnknownEnvironmentError

_FILE = re.compile(r"(?P<name>.+\.py):(?P<attribute>\w+)(?::(?P<variant>.*))?", re.DOTALL)


@dataclass(frozen=True)
class EnvironmentSpec:
    """A parsed environment name."""

    text: str
    """The original text; part of every task's id."""
    name: str
    """``frozenlake``, or the file or module of a user's environment."""
    attribute: str | None = None
    """The class in that file."""
    variant: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def parse(cls, text: str) -> EnvironmentSpec:
        """Parse a specification.

        Raises:
            UnknownEnvironmentError: it has no name, or an option without a value.
        """
        plain, _, query = text.partition("?")
        try:
            pairs = parse_qsl(query, strict_parsing=True, keep_blank_values=True) if query else []
        except ValueError:
            raise UnknownEnvironmentError(
                f"the options of the environment {text!r} are {query!r}; write them as key=value&key=value"
            ) from None
        options = {key: _value(value) for key, value in pairs}
        if file := _FILE.fullmatch(plain):
            return cls(text, str(Path(file["name"])), file["attribute"], file["variant"], options)
        name, _, variant = plain.partition(":")
        if not name.strip():
            raise UnknownEnvironmentError(f"the environment is called {text!r}; write NAME, or NAME:VARIANT?key=value")
        return cls(text, name, None, variant or None, options)


def _value(text: str) -> Any:
    """Parse numbers, true, false, and null as in JSON; anything else is text."""
    try:
        return json.loads(text)
    except ValueError:
        return text

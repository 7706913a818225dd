"""The user's patterns, run by RE2: in time linear in the text, whatever the pattern.

RE2 has no look-around, back references, atomic groups, or possessive repetitions, and its ``\\w``, ``\\d``, ``\\s``,
and ``\\b`` are ASCII. Source: https://github.com/google/re2/wiki/Syntax.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import re2

from lightning_instrumentation.errors import ConfigurationError

_FLAGS = {re.IGNORECASE: "i", re.MULTILINE: "m", re.DOTALL: "s"}
_MOST_MEMORY = 32 << 20
"""Bytes per pattern; beyond this limit RE2 gets slower."""


def replacing(pattern: re.Pattern[str] | str, replacement: str) -> Callable[[str], str]:
    """Return a function that replaces the pattern's matches.

    Raises:
        ConfigurationError: RE2 cannot run the pattern; the message says why.
    """
    given, flags = (pattern, "") if isinstance(pattern, str) else (pattern.pattern, _flags(pattern))
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MOST_MEMORY
    try:
        compiled = re2.compile(f"(?{flags}:{given})" if flags else given, options)
    except re2.error as error:
        reason = error.args[0].decode() if error.args and isinstance(error.args[0], bytes) else str(error)
        raise ConfigurationError(
            f"redact has the pattern {given!r}, which is not one that runs in linear time ({reason}): write it without "
            "look-around, back references and possessive repetitions, or give a function"
        ) from error

    def replace(text: str) -> str:
        parts: list[str] = []
        copied = 0
        for match in compiled.finditer(text):
            start, end = match.span()
            if end > start:
                parts += (text[copied:start], replacement)
                copied = end
        return "".join((*parts, text[copied:])) if parts else text

    return replace


def _flags(pattern: re.Pattern[str]) -> str:
    if pattern.flags & re.VERBOSE:
        raise ConfigurationError(
            f"redact has the pattern {pattern.pattern!r} with re.VERBOSE, which RE2 does not know: write it on one line"
        )
    return "".join(letter for flag, letter in _FLAGS.items() if pattern.flags & flag)

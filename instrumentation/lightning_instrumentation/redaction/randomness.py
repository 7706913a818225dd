"""Whether a value looks random or written by a person: ``q7Xk2…`` is random, ``get_user_token`` is not.

Written text consists of long pieces of one kind (a word, a number); random text changes its kind with every second
character.
"""

from __future__ import annotations

import re

_PIECES = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_HEXADECIMAL = re.compile(r"(?=.*[a-f])(?=.*[0-9])[0-9a-f]{16,}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_JOINED = re.compile(r"[_\-./]")
"""Separators between the words of a name."""
_MARK = re.compile(r"[0-9!%^*~@#$&+=?]")
"""Characters that are rare in a name."""
_LONGEST_READ = 256
"""Characters of a value that are enough to judge."""
_SHORTEST, _LONG = 8, 20
STAND_IN = re.compile(
    r"xxx|\*\*\*|\.\.\.|example|your[-_ ]|placeholder|redacted|changeme|dummy|\$[({]|\{\{|%\(|^%s$|://|"
    r"0123456|1234567|1234abcd|abcdef|a1b2c3",
    re.IGNORECASE,
)
"""Placeholders that people write where a secret would be."""


def looks_random(value: str) -> bool:
    """Whether a value, or a part of it between colons, looks random and is not a placeholder."""
    value = value[:_LONGEST_READ]
    parts = (value, *value.split(":")) if ":" in value else (value,)
    return any(_drawn(part) for part in parts) and not STAND_IN.search(value)


def _drawn(value: str) -> bool:
    if len(value) < _SHORTEST:
        return False
    if _HEXADECIMAL.fullmatch(value):
        return True
    letters = sum(map(str.isalpha, value))
    # A time, a version, or a number has few letters; so do, at worst, half of the values drawn from hex digits.
    if letters < 2 or letters * 6 < len(value):
        return False
    pieces = _PIECES.findall(value)
    return sum(map(len, pieces)) < len(pieces) * _longest_mean(value)


def _longest_mean(value: str) -> float:
    """Return the mean length of a piece up to which a value counts as random: a name made of words has five."""
    joined, marked = _JOINED.search(value) is not None, _MARK.search(value) is not None
    if marked:
        return 2.6 if joined else 3.6
    if joined or len(value) < 12 or value.islower() or value.isupper():
        return 0.0 if value.islower() or value.isupper() or len(value) < 12 else 2.2
    return 2.4 if len(value) < _LONG else 3.2

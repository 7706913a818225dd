"""Which patterns of a user's may be used: those that cannot take exponential time.

A repetition inside a repetition can read one text in exponentially many ways: ``(a+)+b`` against forty times "a" runs
for hours, and nothing can stop Python's matcher. So can alternatives inside a repetition that begin alike. Both are
refused when the rule is given, not when the text comes. Atomic groups and possessive repetitions (``++``, Python 3.11)
never go back, so what is written with them is fine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from re import _parser  # pyright: ignore[reportAttributeAccessIssue]
from typing import Any

_BACKTRACKING = {"MAX_REPEAT", "MIN_REPEAT"}
_FEW = 16
"""A repetition of at most so many times multiplies the time and does not raise it to a power."""


def takes_exponential_time(pattern: re.Pattern[str]) -> bool:
    """Whether it may; the answer errs on the safe side."""
    return _may_explode(_parser.parse(pattern.pattern, pattern.flags), repeated=False)


def _may_explode(parsed: Iterable[tuple[Any, Any]], *, repeated: bool) -> bool:
    """Args: repeated: whether this is inside a repetition that can go back."""
    for operation, argument in parsed:
        kind = str(operation)
        if kind in _BACKTRACKING:
            least, most, body = argument
            if repeated and least != most:
                return True
            if _may_explode(body, repeated=repeated or most > _FEW):
                return True
        elif kind == "BRANCH":
            _, alternatives = argument
            if repeated and not _begin_differently(alternatives):
                return True
            if any(_may_explode(one, repeated=repeated) for one in alternatives):
                return True
        elif kind in ("ATOMIC_GROUP", "POSSESSIVE_REPEAT"):
            if _may_explode(argument if kind == "ATOMIC_GROUP" else argument[2], repeated=False):
                return True
        elif any(_may_explode(inner, repeated=repeated) for inner in _inside(kind, argument)):
            return True
    return False


def _inside(kind: str, argument: Any) -> list[Any]:
    """The patterns that a group or a condition holds; none for what is a single character or place."""
    if kind == "SUBPATTERN":
        return [argument[-1]]
    if kind in ("ASSERT", "ASSERT_NOT"):
        return [argument[1]]
    if kind == "GROUPREF_EXISTS":
        return [one for one in argument[1:] if one is not None]
    return []


def _begin_differently(alternatives: list[Any]) -> bool:
    first = [one[0] if len(one) else None for one in alternatives]
    letters = [argument for operation, argument in filter(None, first) if str(operation) == "LITERAL"]
    return len(letters) == len(alternatives) == len(set(letters))

"""Patterns whose secret is a part of what they match: found in linear time by RE2, then read at the place alone.

RE2 is fast where it is not asked for groups, and Python's own engine is safe where it reads one match from its start.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import re2

MOST_CANDIDATES = 1500
"""Of one pattern in one text: judging more would take more time than a text may."""
_SECRET = "(?P<secret>"


class TooManyCandidatesError(Exception):
    """``at``: what comes after this place was not looked at."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


@dataclass(frozen=True, slots=True)
class Pattern:
    """Written for both engines, with one group ``secret``."""

    source: str
    _search: Any
    _read: re.Pattern[bytes]

    @classmethod
    def of(cls, source: str) -> Pattern:
        return cls(source, re2.compile(without_group(source)), re.compile(source.encode(), re.ASCII))

    def matches(self, view: bytes) -> Iterator[re.Match[bytes]]:
        """Return what matches in a text of one byte a character.

        Raises:
            TooManyCandidatesError: there are more than ``MOST_CANDIDATES``.
        """
        for number, found in enumerate(self._search.finditer(view)):
            if number >= MOST_CANDIDATES:
                raise TooManyCandidatesError(found.start())
            match = self._read.match(view, found.start())
            if match is not None:
                yield match


def without_group(source: str) -> bytes:
    return source.replace(_SECRET, "(?:").encode()


def any_of(patterns: tuple[Pattern, ...]) -> Any:
    """Return one pattern of RE2's that is found where one of these is."""
    return re2.compile(b"|".join(b"(?:" + without_group(pattern.source) + b")" for pattern in patterns))

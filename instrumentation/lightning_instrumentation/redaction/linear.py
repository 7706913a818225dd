"""Patterns with the secret in a group: found in linear time by RE2, then parsed by Python only at the match.

RE2 is fast without groups, and Python's own engine is safe for a single match from a known start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import re2

MOST_CANDIDATES = 1500
"""Maximum per pattern and text: judging more candidates would take longer than a text may take."""
_SECRET = "(?P<secret>"


class TooManyCandidatesError(Exception):
    """There are too many candidates: the text after the position ``at`` was not searched."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern compiled for both engines, with one group ``secret``."""

    source: str
    _search: Any
    _read: re.Pattern[bytes]

    @classmethod
    def of(cls, source: str) -> Pattern:
        """Compile a source, with one group ``secret``, for both engines."""
        return cls(source, re2.compile(without_group(source)), re.compile(source.encode(), re.ASCII))

    def matches(self, view: bytes, begin: int = 0, end: int | None = None) -> Iterator[re.Match[bytes]]:
        """Return the matches in a text of one byte per character, or in a part of it.

        Raises:
            TooManyCandidatesError: there are more than ``MOST_CANDIDATES``.
        """
        end = len(view) if end is None else end
        for number, found in enumerate(self._search.finditer(view, begin, end)):
            if number >= MOST_CANDIDATES:
                raise TooManyCandidatesError(found.start())
            match = self._read.match(view, found.start(), end)
            if match is not None:
                yield match


def without_group(source: str) -> bytes:
    """Return a pattern's source for RE2, without its group."""
    return source.replace(_SECRET, "(?:").encode()


def any_of(sources: Iterable[str]) -> Any:
    """Return an RE2 pattern that matches where any of these does."""
    return re2.compile(b"|".join(b"(?:" + without_group(source) + b")" for source in sources))

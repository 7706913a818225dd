"""Finds secrets in a text and cuts them out; time is linear in the length of the text, with a limit on candidates."""

from __future__ import annotations

from lightning_instrumentation.redaction import formats, named
from lightning_instrumentation.redaction.linear import TooManyCandidatesError, any_of

REPLACEMENT = "[redacted key]"
THE_REST = "[redacted: more candidates for keys than can be looked at]"
_SOURCES = tuple(pattern.source for pattern in (*formats.PATTERNS, *named.PATTERNS))
_OURS, _ANY = any_of(_SOURCES), any_of((formats.RUN, *_SOURCES))
"""Most texts contain none of these, and one search shows that."""
_SHORTEST = 8
"""Shorter texts are not searched."""


def redact(text: str) -> str:
    """Return the text with every secret replaced; the same object if there is none.

    If there are too many candidates to judge, all of the text from there on is replaced.
    """
    found, end = _find(text)
    if not found and end == len(text):
        return text
    parts: list[str] = []
    copied = 0
    for start, stop in found:
        if start >= end:
            break
        if start >= copied:
            parts += (text[copied:start], REPLACEMENT)
        copied = max(copied, stop)
    parts.append(text[copied:end])
    return "".join(parts) + (THE_REST if end < len(text) else "")


def found_in(text: str) -> bool:
    """Whether a text contains a secret, or too many candidates to tell."""
    found, end = _find(text)
    return bool(found) or end < len(text)


def _find(text: str) -> tuple[list[tuple[int, int]], int]:
    """Return the positions of secrets, in order, and the position up to which the text was searched."""
    found: list[tuple[int, int]] = []
    end = len(text)
    if end < _SHORTEST:
        return found, end
    # One byte per character, so that positions are those of the text: a secret is ASCII, its neighbors may not be.
    view = text.encode("ascii", "replace")
    if _ANY.search(view) is None:
        return found, end
    finders = [formats.find_the_librarys(text, view)]
    if _OURS.search(view) is not None:
        finders += (formats.find_ours(view), named.find(view))
    for finder in finders:
        try:
            found.extend(finder)
        except TooManyCandidatesError as error:
            end = min(end, error.at)
    return sorted(found), end

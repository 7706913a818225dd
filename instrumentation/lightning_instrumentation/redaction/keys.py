"""Finds secrets in a text and cuts them out; time is linear in the length of the text, and bounded by candidates."""

from __future__ import annotations

from lightning_instrumentation.redaction import formats, named
from lightning_instrumentation.redaction.linear import TooManyCandidatesError, any_of

REPLACEMENT = "[redacted key]"
THE_REST = "[redacted: more candidates for keys than can be looked at]"
_MAY = any_of((*formats.PATTERNS, *named.PATTERNS))
"""In most texts nothing of all that is: one search says so."""
_SHORTEST = 8
"""Nothing shorter is looked for."""


def redact(text: str) -> str:
    """Return the text with every secret replaced; the same object where there is none.

    From the place on where there are too many candidates to judge each, all of the text is replaced.
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
    found, end = _find(text)
    return bool(found) or end < len(text)


def _find(text: str) -> tuple[list[tuple[int, int]], int]:
    """Return where secrets are, in order, and up to where was looked."""
    found: list[tuple[int, int]] = []
    end = len(text)
    if end < _SHORTEST:
        return found, end
    # A byte a character, so that places in it are places in the text: a secret is ASCII, its neighbors may not be.
    view = text.encode("ascii", "replace")
    finders = [formats.find_the_librarys(text, view)]
    if _MAY.search(view) is not None:
        finders += (formats.find_ours(view), named.find(view))
    for finder in finders:
        try:
            found.extend(finder)
        except TooManyCandidatesError as error:
            end = min(end, error.at)
    return sorted(found), end

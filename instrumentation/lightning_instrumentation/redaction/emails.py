"""Finds e-mail addresses in a text, in linear time: around each ``@`` what can belong to an address is read once.

The everyday form of RFC 5322 alone: no quoted local parts, no comments, no address literals.
"""

from __future__ import annotations

import re

REPLACEMENT = "[redacted e-mail]"
_LOCAL_MARKS = frozenset("._%+-!#$&'*/=?^`{|}~")
# Labels cannot hold a dot, so there is one way to read a domain.
_DOMAIN = re.compile(r"(?:[^\W_](?:[\w-]{0,62})\.){1,16}[^\W\d_]{2,24}(?![\w-])")


def may_contain(text: str) -> bool:
    """False where there is certainly none; cheap."""
    return "@" in text


def redact(text: str) -> str:
    """Return the text with every address replaced; the same object where there is none."""
    parts: list[str] = []
    copied = 0
    at = text.find("@")
    while at >= 0:
        start = at
        # Never across an earlier "@", which is no part of a local part: every character is looked at once.
        while start > copied and (text[start - 1].isalnum() or text[start - 1] in _LOCAL_MARKS):
            start -= 1
        domain = _DOMAIN.match(text, at + 1) if start < at else None
        if domain is not None:
            parts += (text[copied:start], REPLACEMENT)
            copied = domain.end()
        at = text.find("@", domain.end() if domain is not None else at + 1)
    return "".join((*parts, text[copied:])) if parts else text

"""Finds e-mail addresses in a text, in time linear in its length: no character is read more than a few times.

The everyday form of RFC 5322 alone: no quoted local parts, no comments, no address literals.
"""

from __future__ import annotations

import re

REPLACEMENT = "[redacted e-mail]"
# What is written twice (a-z, \w) is found sooner than by \w alone.
_LOCAL = r"[a-zA-Z0-9_\w.%+\-!#$&'*/=?^`{|}~]"
_LABEL = r"[^\W_][a-z\w-]{0,62}+\."
_TOP = r"[^\W\d_]{2,24}+"
# Labels cannot hold a dot, so there is one way to read a domain; most have one label before the top one, and end with
# the text's word or where the next address begins.
_DOMAIN = rf"{_LABEL}(?:{_TOP}(?:(?![a-z\w.-])|(?=\.{_LOCAL}?@))|(?:{_LABEL}){{0,15}}{_TOP}(?![a-z\w-]))"
_ADDRESS = rf"{_LOCAL}++@{_DOMAIN}"
_CANDIDATE = re.compile(rf"@(?<={_LOCAL}@){_DOMAIN}")
"""In most texts with an "@" there is none; the engine goes from one "@" to the next."""
_ADDRESSES = re.compile(rf"(?<!{_LOCAL}){_ADDRESS}(?:(?!{_LOCAL})|(?>{_ADDRESS})*+)")
"""The engine tries every place: one within a local part fails at once, so none is read again from its middle. Where a
domain ends in the middle of a word (``a@b.com.c@d.org``), the next address begins there."""


def may_contain(text: str) -> bool:
    """False where there is certainly none; cheap."""
    return "@" in text


def redact(text: str) -> str:
    """Return the text with every address replaced, several that stand side by side by one mark; the same object where
    there is none."""
    first = _CANDIDATE.search(text)
    if first is None:
        return text
    begin = text.rfind("@", 0, first.start()) + 1  # no local part reaches across one
    return text[:begin] + _ADDRESSES.sub(REPLACEMENT, text[begin:])

"""Finds email addresses in a text, in time linear in its length: no character is read more than a few times.

Only the everyday form of RFC 5322: no quoted local parts, no comments, no address literals.
"""

from __future__ import annotations

import re

REPLACEMENT = "[redacted e-mail]"
# Redundant alternatives (a-z, \w) match faster than \w alone.
_LOCAL = r"[a-zA-Z0-9_\w.%+\-!#$&'*/=?^`{|}~]"
_LABEL = r"[^\W_][a-z\w-]{0,62}+\."
_TOP = r"[^\W\d_]{2,24}+"
# Labels contain no dot, so a domain can be parsed in only one way; most have one label before the top-level one, and
# end with the text's word or where the next address begins.
_DOMAIN = rf"{_LABEL}(?:{_TOP}(?:(?![a-z\w.-])|(?=\.{_LOCAL}?@))|(?:{_LABEL}){{0,15}}{_TOP}(?![a-z\w-]))"
_ADDRESS = rf"{_LOCAL}++@{_DOMAIN}"
_CANDIDATE = re.compile(rf"@(?<={_LOCAL}@){_DOMAIN}")
"""Most texts with an "@" contain no address; the engine jumps from one "@" to the next."""
_ADDRESSES = re.compile(rf"(?<!{_LOCAL}){_ADDRESS}(?:(?!{_LOCAL})|(?>{_ADDRESS})*+)")
"""The engine tries every position. A position inside a local part fails at once, so no local part is read again from
its middle. If a domain ends in the middle of a word (``a@b.com.c@d.org``), the next address begins there."""


def may_contain(text: str) -> bool:
    """Whether a text may contain an address; False if it certainly contains none. This check is cheap."""
    return "@" in text


def redact(text: str) -> str:
    """Return the text with every address replaced, adjacent ones by one mark; the same object if there is none."""
    first = _CANDIDATE.search(text)
    if first is None:
        return text
    begin = text.rfind("@", 0, first.start()) + 1  # no local part extends across an "@"
    return text[:begin] + _ADDRESSES.sub(REPLACEMENT, text[begin:])

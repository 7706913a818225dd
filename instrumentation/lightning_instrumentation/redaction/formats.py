"""Finds secrets by their own format, in any context: keys with an issuer's prefix, web tokens, private keys.

Issuers' formats come from the library redact-secret, which maintains them. It is slow on whole texts, so it gets only
the parts that can contain a key: runs of characters with a digit, and a few characters before them. Our own formats are
those that the library lacks, and those of which even half a key is cut out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

import re2
import redact_secret

from lightning_instrumentation.redaction.linear import Pattern
from lightning_instrumentation.redaction.randomness import STAND_IN, looks_random

Span = tuple[int, int]

_CERTAIN = (
    r"gsk_[A-Za-z0-9]{20,}",
    r"xai-[A-Za-z0-9]{20,}",
    r"hf_[A-Za-z0-9]{20,}",
    r"api_org_[A-Za-z0-9]{20,}",
    r"(?:AKIA|ASIA)[A-Z0-9]{16}",
    r"AIza[\w-]{30,}",
    r"ya29\.[\w-]{20,}",
    r"GOCSPX-[\w-]{20,}",
    r"gh[pousr]_[A-Za-z0-9]{20,}",
    r"github_pat_\w{20,}",
    r"gl(?:pat|dt|ft|rt|soat|cbt|imt|ptt|agent|oas|ffct|wt)-[\w.-]{16,}",
    r"GR1348941[\w-]{20,}",
    r"xox[abeprs]-[\w-]{10,}",
    r"xoxe\.xox[bp]-[\w-]{10,}",
    r"xapp-[\w-]{10,}",
    r"[sr]k_(?:live|test)_[A-Za-z0-9]{16,}",
    r"whsec_[A-Za-z0-9+/]{24,}",
    r"npm_[A-Za-z0-9]{30,}",
    r"pypi-[\w-]{30,}",
    r"shp(?:at|ss|ca|pa)_[a-fA-F0-9]{32}",
    r"sq0(?:csp|atp|idp)-[\w-]{20,}",
    r"xkeysib-[a-f0-9]{64}-[A-Za-z0-9]{16}",
    r"SK[a-f0-9]{32}",
    r"figd_[\w-]{32,}",
    r"pscale_(?:tkn|pw|oauth|pwd)_[\w.-]{32,}",
    r"AGE-SECRET-KEY-1[A-Z0-9]{58}",
    r"sdk-[a-f0-9]{8}-[a-f0-9]{4}-[a-f0-9]{4}-[a-f0-9]{4}-[a-f0-9]{12}",
    r"access_token\$production\$[a-z0-9]{16}\$[a-f0-9]{32}",
    r"ATBB[A-Za-z0-9]{28,}",
    r"AKC[A-Za-z0-9]{60,}",
    r"WPL_AP[01]\.[A-Za-z0-9]{12,20}\.[\w+/=-]{4,20}",
    r"sl\.[\w-]{100,}",
    r"EAA[A-Za-z0-9]{60,}",
    r"pplx-[A-Za-z0-9]{32,}",
    r"ntn_[0-9]{11}[A-Za-z0-9]{30,40}",
    # A web token; its signature may be truncated.
    r"eyJ[\w-]{7,}\.[\w-]{10,}(?:\.[\w-]{1,})?",
)
_PROBABLE = (r"sk-[\w-]{16,}",)
"""A lower-case name may look like this, too."""
_LONGER_THAN_A_NAME = 32

_BEGINNING = "(?:^|[^A-Za-z0-9]|\\\\[a-z])"
"""Not in the middle of a word; the letter of an escape (``\\n``) does not count as part of one."""
PATTERNS = (
    *(Pattern.of(f"{_BEGINNING}(?P<secret>{'|'.join(forms)})") for forms in (_CERTAIN, _PROBABLE)),
    Pattern.of(r"(?P<secret>-----BEGIN )"),
)
"""The last one only finds the position of a private key, from which the rest of the key is read."""
_PEM_BEGIN = re2.compile(rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_PEM_END = re2.compile(rb"-----END [A-Z0-9 ]{0,48}-----")

# A block of base64, which is content (an image, a certificate), or else a run of characters that may contain a key.
RUN = r"(?:[A-Za-z0-9+/=]{60,80}\r?\n){2,}|[\w+/=.~%:$-]{20,}"
_RUN = re2.compile(RUN.encode())
_OF_A_KEY = re.compile(rb"[g-zG-Z_]")
_DIGIT = re.compile(rb"[0-9]")
_BEFORE = 16
"""Characters before a run that may name it."""
_LONGEST_RUN = 4096
"""Longer runs are content, not an issuer's key."""
_BY_NAME = frozenset({"generic-token", "bearer-token", "connection-string"})
"""Detectors without a format of their own; ``named`` covers these."""
_MOST_RUNS = 2500
"""Per text: beyond this, only our own formats are searched."""


def find_ours(view: bytes) -> Iterator[Span]:
    """Return the positions of secrets in our formats.

    Args:
        view: the text in ASCII, one byte per character.

    Raises:
        TooManyCandidatesError: the text after a position was not searched.
    """
    yield from _private_keys(view)
    certain, probable = PATTERNS[:2]
    for match in certain.matches(view):
        if not STAND_IN.search(match["secret"].decode()):
            yield match.span("secret")
    for match in probable.matches(view):
        if _probably_a_key(match["secret"].decode()):
            yield match.span("secret")


def find_the_librarys(text: str, view: bytes) -> Iterator[Span]:
    """Return the positions of secrets in the library's formats."""
    for start, end in _windows(view):
        for finding in redact_secret.scan(text[start:end]):
            if finding.detector not in _BY_NAME:
                yield start + finding.start, start + finding.end


def _probably_a_key(value: str) -> bool:
    mixed = not value.islower() and any(map(str.isdigit, value))
    return (mixed and len(value) >= _LONGER_THAN_A_NAME) or looks_random(value[3:])


def _private_keys(view: bytes) -> Iterator[Span]:
    end = 0
    for match in _PEM_BEGIN.finditer(view):
        if match.start() < end:
            continue
        ended = _PEM_END.search(view, match.end())
        # If the key's end is missing, all of the rest may be the key.
        end = len(view) if ended is None else ended.end()
        yield match.start(), end
        if ended is None:
            return


def _windows(view: bytes) -> Iterator[Span]:
    """Return the parts of a text that the library must search, in order and disjoint."""
    window: Span | None = None
    for match in islice(_RUN.finditer(view), _MOST_RUNS):
        start, end = match.span()
        # A run without a digit is a name; a run of only hexadecimal digits is a key only if its name says so.
        if end - start > _LONGEST_RUN or view[end - 1] == 10 or not _may_be_a_key(view, start, end):
            continue
        start, end = max(0, start - _BEFORE), end + 1
        if window is not None and start <= window[1]:
            window = window[0], end
            continue
        if window is not None:
            yield window
        window = start, end
    if window is not None:
        yield window


def _may_be_a_key(view: bytes, start: int, end: int) -> bool:
    return _DIGIT.search(view, start, end) is not None and _OF_A_KEY.search(view, start, end) is not None

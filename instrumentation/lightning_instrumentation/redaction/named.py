"""Finds secrets by their context: ``password=…``, ``"api_key": "…"``, ``Authorization: …``, ``user:…@host``.

Most of these have no format of their own, so a value counts as a secret if it looks random (``randomness``). A password
that is a word is not found.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator

import re2

from lightning_instrumentation.redaction.linear import Pattern
from lightning_instrumentation.redaction.randomness import STAND_IN, looks_random

_WORDS = (
    r"(?:pass(?:word|wd|phrase|code)?|pwd|secret|token|credentials?|dsn|authorization|session(?:[_-]?id)?|[_-]pat|_auth|"
    r"phpsessid|connect\.sid|apikey|[_.-]key|"
    r"(?:api|access|auth|private|account|signing|encryption|master|shared[_-]?access)[ _.-]?key)"
)
_QUOTE = r"""(?:\\*["'`])"""
_QUOTED = r"""[^\s"'`\\]"""
_BARE = r"""[^\s"'`\\,;&<>(){}\[\]|]"""
_IS = r"\s{0,3}(?:=>|:=|=|:|>)\s{0,3}"
"""Between a name and its value."""
_IN_LIST = r"(?:\[\s{0,40})?"
_SLASH = r"\\*/"
"""Some encoders of JSON escape the slash."""
_SCHEME = r"(?:(?:basic|bearer|token|apikey|digest) {1,3})?"
_TELLS_ABOUT = re.compile(
    r"(?:ids?|hash|public[\w-]*|sha\d*|digest|name|type|url|uri|path|file|count|limit|length|len|size|expir\w*|_at|version|kind|"
    r"class|budget|usage|label|format|column|index|pattern|prefix|suffix|header|model|mode|ttl|"
    r"(?:next|prev\w*|change|client|lock|page|pagination|continuation|request|creation|update|action|upload|resume|export)"
    r"[_-]?token)$",
    re.IGNORECASE,
)
"""A name with such an ending is that of something else, or of something about a secret: ``next_token``,
``token_count``, ``secret_name``."""
_COOKIES = re.compile(r"(?:jsessionid|phpsessid|asp\.net_sessionid|connect\.sid)$", re.IGNORECASE)
"""Session cookies are secrets, although their names end like the names of something about a secret."""
_NAME = re2.compile(f"(?i){_WORDS}")
_NAME_READ = re.compile(f"(?i){_WORDS}[\\w.-]*".encode(), re.ASCII)
_NAME_BEFORE = re.compile(rb"[\w.:-]*\Z")
_LONGEST_NAME = 64
_LONGEST_VALUE = 4096
"""How many bytes of a value are searched for another name with its value."""
_STAND_INS = frozenset({"password1", "pass123", "pw", "****", "xxx"})
_TEMPLATE = re.compile(r"[{}<>$\[\]]|%[(s]")

Span = tuple[int, int]


def _assigned(match: re.Match[bytes]) -> bool:
    begins = max(0, match.start() - _LONGEST_NAME)
    before, name = _NAME_BEFORE.search(match.string, begins, match.start()), _NAME_READ.match(match[0])
    assert before is not None
    assert name is not None
    return _drawn(match) and not _tells_about((before[0] + name[0]).decode())


def _tells_about(name: str) -> bool:
    if name.lower().startswith("session") or _COOKIES.search(name) is not None:
        return False
    return _TELLS_ABOUT.search(name) is not None


def _drawn(match: re.Match[bytes]) -> bool:
    return looks_random(match["secret"].decode())


def _in_url(match: re.Match[bytes]) -> bool:
    password = match["secret"].decode()
    if _TEMPLATE.search(password) or password.lower() in _STAND_INS:
        return False
    # A value in this place is always a password, unless it is a placeholder.
    return looks_random(password) or not (password.isalpha() and (password.islower() or password.isupper()))


def _bearer(match: re.Match[bytes]) -> bool:
    token = match["secret"].decode()
    return any(map(str.isdigit, token)) and STAND_IN.search(token) is None


def _basic(match: re.Match[bytes]) -> bool:
    """Whether a match is basic credentials, ``user:password`` in base64."""
    given = match["secret"]
    try:
        return b":" in base64.b64decode(given + b"=" * (-len(given) % 4), validate=True)
    except binascii.Error:
        return False


def _always(match: re.Match[bytes]) -> bool:
    return True


_SOURCES: tuple[tuple[str, Callable[[re.Match[bytes]], bool]], ...] = (
    # name = value, "name": "value", <name>value
    (
        rf"(?i){_WORDS}[\w.-]*{_QUOTE}?\]?{_IS}{_IN_LIST}{_QUOTE}{_SCHEME}"
        rf"(?P<secret>{_QUOTED}{{8,}})",
        _assigned,
    ),
    (
        rf"(?i){_WORDS}[\w.-]*{_QUOTE}?\]?{_IS}{_SCHEME}(?P<secret>{_BARE}{{8,}})",
        _assigned,
    ),
    # --password value, curl -u user:value
    (
        rf"(?i)(?:--[\w-]*{_WORDS}[\w-]* +|\s-u +{_QUOTE}?[\w.@-]+:){_QUOTE}?"
        rf"(?P<secret>{_BARE}{{8,}})",
        _drawn,
    ),
    # .netrc: login name password value
    (rf"(?i)\b(?:login|user)\s+\S+\s+password\s+(?P<secret>{_BARE}{{6,}})", _drawn),
    # scheme://user:value@host, scheme://value@host, scheme://value:x-oauth-basic@host
    (rf":(?:{_SLASH}){{2}}[^\s/:@\"'`<>?#]*:(?P<secret>[^\s/@\"'`?#]{{3,}})@", _in_url),
    (rf":(?:{_SLASH}){{2}}(?P<secret>[\w.-]{{16,}})(?::[\w-]*)?@", _drawn),
    (r"(?i)\bbearer {1,3}(?P<secret>[A-Za-z0-9._~+/-]{16,}={0,2})", _bearer),
    (r"(?i)\bbasic {1,3}(?P<secret>[A-Za-z0-9+/]{8,}={0,2})", _basic),
    # URLs that are secrets: Slack's, Discord's, and Teams' webhooks, and Azure's signed links.
    (
        rf"hooks\.slack\.com{_SLASH}(?:services|workflows|triggers){_SLASH}(?P<secret>(?:[\w+-]|{_SLASH}){{20,}})",
        _always,
    ),
    (
        rf"discord(?:app)?\.com{_SLASH}api{_SLASH}webhooks{_SLASH}[0-9]{{15,25}}{_SLASH}(?P<secret>[\w-]{{50,}})",
        _always,
    ),
    (rf"webhook\.office\.com{_SLASH}webhookb2{_SLASH}(?P<secret>(?:[\w@-]|{_SLASH}){{60,}})", _always),
    (r"[?&;]sig(?:nature)?=(?P<secret>[A-Za-z0-9%/+_-]{30,})", _always),
)
_PLACES = tuple((Pattern.of(source), takes) for source, takes in _SOURCES)
PATTERNS = tuple(pattern for pattern, _ in _PLACES)


def is_secret(name: str, value: str) -> bool:
    """Whether a value with this name (in JSON, say) is a secret."""
    name = name[-_LONGEST_NAME:]
    return len(value) >= 8 and _NAME.search(name) is not None and not _tells_about(name) and looks_random(value)


def find(view: bytes) -> Iterator[Span]:
    """Return the positions of secrets.

    Args:
        view: the text in ASCII, one byte per character.

    Raises:
        TooManyCandidatesError: the text after a position was not searched.
    """
    for pattern, takes in _PLACES:
        for match in pattern.matches(view):
            if takes(match):
                yield match.span("secret")
                continue
            begin, end = match.span("secret")  # token_url=https://host/?api_key=...: the value has a name in it
            for inner in pattern.matches(view, begin, min(end, begin + _LONGEST_VALUE)):
                if takes(inner):
                    yield inner.span("secret")

"""Finds API keys, access tokens and private keys in a text, by the prefixes that their issuers give them.

Time is linear in the text: each prefix is searched for as plain text, and what follows it is read once. Sources: the
issuers' documentation (OpenAI, Anthropic, AWS, GitHub, GitLab, Google, Hugging Face, Slack, Stripe, npm, PyPI),
RFC 6750 (bearer tokens), RFC 7519 (JSON Web Tokens) and RFC 7468 (PEM).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

REPLACEMENT = "[redacted key]"

_WORD = r"[A-Za-z0-9_-]"
_BODIES: Mapping[str, str] = {
    # prefix: what must follow it; a class and a length, nothing that could be read in two ways
    "sk-": _WORD + "{16,}",
    "gsk_": r"[A-Za-z0-9]{20,}",
    "xai-": r"[A-Za-z0-9]{20,}",
    "hf_": r"[A-Za-z0-9]{20,}",
    "AKIA": r"[A-Z0-9]{16}",
    "ASIA": r"[A-Z0-9]{16}",
    "AIza": _WORD + "{30,}",
    "ya29.": _WORD + "{20,}",
    "ghp_": r"[A-Za-z0-9]{20,}",
    "gho_": r"[A-Za-z0-9]{20,}",
    "ghu_": r"[A-Za-z0-9]{20,}",
    "ghs_": r"[A-Za-z0-9]{20,}",
    "ghr_": r"[A-Za-z0-9]{20,}",
    "github_pat_": r"[A-Za-z0-9_]{20,}",
    "glpat-": _WORD + "{16,}",
    "xoxb-": _WORD + "{10,}",
    "xoxp-": _WORD + "{10,}",
    "xoxa-": _WORD + "{10,}",
    "xoxr-": _WORD + "{10,}",
    "xapp-": _WORD + "{10,}",
    "sk_live_": r"[A-Za-z0-9]{16,}",
    "sk_test_": r"[A-Za-z0-9]{16,}",
    "rk_live_": r"[A-Za-z0-9]{16,}",
    "npm_": r"[A-Za-z0-9]{30,}",
    "pypi-": _WORD + "{30,}",
}
_BEARER = r"[A-Za-z0-9._~+/=-]{16,}"
_JWT = "eyJ"
_SEGMENT = re.compile(_WORD + "+")
_PEM_BEGIN, _PEM_KIND, _PEM_END = "-----BEGIN ", "PRIVATE KEY-----", "-----END "
_LONGEST_PEM_LABEL = 64

_PREFIXED: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (prefix, re.compile(body)) for prefix, body in _BODIES.items()
)
_SCHEMES = tuple((name, re.compile(_BEARER)) for name in ("Bearer ", "bearer "))

# Searching for one character is ten times as fast as for two: nearly all is looked for by one, which is rare in prose.
_MARKS: Mapping[str, tuple[str, ...]] = {
    "_": tuple(prefix[:-1] for prefix in _BODIES if prefix.endswith("_")),
    "-": (*(prefix[:-1] for prefix in _BODIES if prefix.endswith("-")), _PEM_KIND.rstrip("-")),
    "I": ("AK", "AS"),
    "z": ("AI",),
    "J": ("ey",),
}
"""What stands before each of them."""
_ENDINGS = tuple(_MARKS.items())
_RARE = 150
"""Where a mark is more than one of so many characters, looking at each costs more than searching for whole prefixes."""
_OTHERS = ("ya29.", "earer ")
_MARKED = tuple(ending + mark for mark, endings in _MARKS.items() for ending in endings)
assert all(any(part in prefix for part in (*_MARKED, *_OTHERS)) for prefix in (*_BODIES, _JWT))

Finder = Callable[[str, int], tuple[int, int] | None]


def may_contain(text: str) -> bool:
    """False where there is certainly none; cheap."""
    for other in _OTHERS:  # not ``any``: every text of every span comes by here
        if other in text:
            return True
    for mark, endings in _ENDINGS:  # noqa: SIM110
        if mark in text and _follows(text, mark, endings):
            return True
    return False


def _follows(text: str, mark: str, endings: tuple[str, ...]) -> bool:
    at = text.find(mark)
    if text.count(mark) > len(text) // _RARE:
        return any(ending + mark in text for ending in endings)
    while at >= 0:
        if text.endswith(endings, 0, at):
            return True
        at = text.find(mark, at + 1)
    return False


def redact(text: str) -> str:
    """Return the text with every key replaced; the same object where there is none."""
    for prefix, body in _PREFIXED:
        text = _without(text, prefix, lambda t, at, p=prefix, b=body: _prefixed(t, at, p, b, keep=0))
    for scheme, token in _SCHEMES:
        text = _without(text, scheme, lambda t, at, p=scheme, b=token: _prefixed(t, at, p, b, keep=len(p)))
    text = _without(text, _JWT, _web_token)
    return _without_private_keys(text)


def _without(text: str, anchor: str, find: Finder) -> str:
    """Replace what ``find`` returns ``(start, end)`` of, anchor by anchor; ``(at, at)`` of nothing, to go on there."""
    at = text.find(anchor)
    if at < 0:
        return text
    parts: list[str] = []
    copied = 0
    while at >= 0:
        found = None if _inside_a_word(text, at) else find(text, at)
        if found is None:
            at = text.find(anchor, at + len(anchor))
            continue
        start, end = found
        if end > start:
            parts += (text[copied:start], REPLACEMENT)
            copied = end
        at = text.find(anchor, max(end, at + len(anchor)))
    return "".join((*parts, text[copied:])) if parts else text


def _inside_a_word(text: str, at: int) -> bool:
    """Whether the anchor is the tail of a longer word (``task-``); the letter of an escape (``\\n``) is no word."""
    # Only ASCII letters join a prefix: scripts without spaces put a key right behind a word.
    if at == 0 or not (text[at - 1].isascii() and text[at - 1].isalnum()):
        return False
    return at < 2 or text[at - 2] != "\\"


def _prefixed(text: str, at: int, prefix: str, body: re.Pattern[str], *, keep: int) -> tuple[int, int] | None:
    match = body.match(text, at + len(prefix))
    return None if match is None else (at + keep, match.end())


def _web_token(text: str, at: int) -> tuple[int, int] | None:
    head = _SEGMENT.match(text, at)
    assert head is not None
    end = head.end()
    payload = _SEGMENT.match(text, end + 1) if text[end : end + 1] == "." else None
    if payload is None or end - at < 10 or payload.end() - payload.start() < 10:
        return end, end  # nothing else can begin in what was read: it is not read again
    end = payload.end()
    signature = _SEGMENT.match(text, end + 1) if text[end : end + 1] == "." else None
    return at, signature.end() if signature is not None else end


def _without_private_keys(text: str) -> str:
    parts: list[str] = []
    copied = 0
    at = text.find(_PEM_BEGIN)
    while at >= 0:
        kind = text.find(_PEM_KIND, at, at + _LONGEST_PEM_LABEL)
        if kind < 0:
            at = text.find(_PEM_BEGIN, at + len(_PEM_BEGIN))
            continue
        ended = text.find(_PEM_END, kind)
        closing = text.find("-----", ended + len(_PEM_END)) if ended >= 0 else -1
        # Where its end is not in sight, all of the rest may be the key.
        end = closing + len("-----") if closing >= 0 else len(text)
        parts += (text[copied:at], REPLACEMENT)
        copied = end
        at = text.find(_PEM_BEGIN, end)
    return "".join((*parts, text[copied:])) if parts else text

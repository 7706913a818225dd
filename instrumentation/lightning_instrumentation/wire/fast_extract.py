"""Cuts token ids and logprobs out of a whole answer; they are most of its text.

Parsing all of it as JSON would cost more than recording the call. So the long values are located in the bytes and
replaced by ``null``: the rest is what the caller gets. The numbers are not parsed here at all; their text goes on the
span. The result is exact, or there is none: an unescaped quote, a name, a quote, and a colon are a key wherever they
occur in valid JSON, and there must be as many values as the rest has places for. An answer that looks different is left
to the full parser.

Source: vLLM's OpenAI-compatible server (``return_token_ids``); OpenAI API reference (``logprobs`` of a chat choice).
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from lightning_instrumentation.spans.packing import NumberText
from lightning_instrumentation.wire.decoding import read_json

_KEY = re.compile(rb'"(prompt_token_ids|token_ids|logprobs)"\s*:\s*')
_LOGPROBS = re.compile(rb'\{"content":( ?)\[(\{"token":|\])')
_TAIL = re.compile(rb'(?:, ?"refusal": ?null)?\}')
# The end of the key: an entry has eight quotes, but only two "g".
_NUMBERS = re.compile(rb'gprob": ?([^ ,][^,]*),')
_IN_IDS = b"0123456789, "
_IN_LOGPROBS = b"0123456789.eE+-, "


class FastExtract(NamedTuple):
    """An answer and the values cut out of it."""

    part: dict[str, Any]
    """The answer with ids and logprobs, as text."""
    document: dict[str, Any]
    """The answer with None in the places of ids and logprobs."""
    text: bytes
    """The answer's text, unchanged except for ``null`` in these places."""


def fast_extract(data: bytes) -> FastExtract | None:
    """Return an answer and the values cut out of it; None for one of another form, which must be parsed as a whole."""
    try:
        text, values = _cut(data)
        document = read_json(text)
        part = _with_values(document, values) if values else None
        return None if part is None else FastExtract(part, document, text)
    except (ValueError, RecursionError):
        return None


def _cut(data: bytes) -> tuple[bytes, dict[str, list[Any]]]:
    """Cut the values out. Raises ValueError if a value has an unexpected form."""
    kept: list[bytes] = []
    values: dict[str, list[Any]] = {}
    copied = 0
    position = 0
    while (key := _KEY.search(data, position)) is not None:
        position = start = key.end()
        if data[key.start() - 1 : key.start()] == b"\\":  # inside a string
            continue
        name = key[1].decode()
        end, value = _value(name, data, start)
        kept += (data[copied:start], b"null")
        copied = position = end
        values.setdefault(name, []).append(value)
    return b"".join((*kept, data[copied:])), values


def _value(name: str, data: bytes, start: int) -> tuple[int, Any]:
    """Return a value's end, and the value."""
    if data.startswith(b"null", start):
        return start + 4, None
    return _logprobs(data, start) if name == "logprobs" else _ids(data, start)


def _ids(data: bytes, start: int) -> tuple[int, NumberText | list[int]]:
    """Return the end of ids, which is the first closing bracket, and the ids. In between are only digits, commas, and
    spaces, with a digit first and last."""
    end = data.find(b"]", start) + 1
    ids = data[start + 1 : end - 1]
    if not data.startswith(b"[", start) or end == 0 or ids.translate(None, _IN_IDS):
        raise ValueError("token ids of another form")
    if not ids:
        return end, []
    if not (ids[:1].isdigit() and ids[-1:].isdigit()):
        raise ValueError("no array of numbers")
    return end, NumberText(data[start:end].decode())


def _logprobs(data: bytes, start: int) -> tuple[int, NumberText | None]:
    """Return the end of a chat choice's logprobs, and the logprobs, without alternatives, as we ask for them.

    They end with the first entry followed by a closing bracket. Everything in between belongs to them, because there is
    no other content. If there are as many numbers as sampled ids, none of them is an alternative's.
    """
    begun = _LOGPROBS.match(data, start)
    if begun is None:
        raise ValueError("logprobs of another form")
    numbers: list[bytes] = []
    written = b""
    end = begun.end()
    if begun[2] != b"]":
        last = b'"top_logprobs":%b[]}]' % begun[1]
        found = data.find(last, start)
        end = found + len(last)
        numbers = _NUMBERS.findall(data, start, end)
        written = b",".join(numbers)
        if found < 0 or written.translate(None, _IN_LOGPROBS):
            raise ValueError("logprobs of another form")
    tail = _TAIL.match(data, end)
    if tail is None:
        raise ValueError("logprobs with more than their content")
    return tail.end(), NumberText((b"[%b]" % written).decode()) if numbers else None


def _with_values(document: Any, values: dict[str, list[Any]]) -> dict[str, Any] | None:
    """Return the document with the values in their places, both in order; None if there are not as many of each."""
    if not isinstance(document, dict) or not isinstance(document.get("choices"), list):
        return None
    choices = [dict(choice) for choice in document["choices"] if isinstance(choice, dict)]
    part = {**document, "choices": choices}
    for name, found in values.items():
        places = [choice for choice in choices if name in choice]
        if name in part:
            if places:  # their order is unknown
                return None
            places = [part]
        if len(places) != len(found):
            return None
        for place, value in zip(places, found, strict=True):
            place[name] = value
    return part if all(map(_pairs, choices)) else None


def _pairs(choice: dict[str, Any]) -> bool:
    """Whether there are as many logprobs as sampled ids, if there are any."""
    ids, logprobs = choice.get("token_ids"), choice.get("logprobs")
    if not isinstance(logprobs, NumberText):
        return True
    return isinstance(ids, NumberText) and ids.size == logprobs.size

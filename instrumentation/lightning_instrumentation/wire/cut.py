"""Cuts token ids and log-probabilities out of a whole answer, whose text is mostly these.

Reading all of it as JSON would cost more than recording the call. So the long values are found in the text and read by
themselves, and ``null`` stands in their place: the rest is what the caller shall get. Exact, or not done at all: a
quote that is not escaped, a name, a quote and a colon are a key wherever they stand in valid JSON, and what was cut out
must be as many values as the rest has places for. Whatever looks different is left to those who read everything.

Source: vLLM's OpenAI-compatible server (``return_token_ids``); OpenAI API reference (``logprobs`` of a chat choice).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

try:
    from orjson import loads as _numbers  # pyright: ignore[reportAssignmentType]
except ImportError:  # the light client comes without it
    _numbers: Callable[[str], Any] = json.loads

_KEY = re.compile(r'"(prompt_token_ids|token_ids|logprobs)"\s*:\s*')
_LOGPROBS = re.compile(r'\{"content":( ?)\[(\{"token":|\])')
_TAIL = re.compile(r'(?:, ?"refusal": ?null)?\}')
_LOGPROB = re.compile(r'"logprob": ?([^,]+)')


class Sampled(list[float]):
    """The log-probabilities of a choice's tokens, in place of its ``logprobs``."""


def cut_out(data: bytes) -> tuple[dict[str, Any], bytes] | None:
    """Return an answer with ids and logprobs read, and its text with ``null`` in their places.

    None where it is of another form: then it has to be read as a whole.
    """
    try:
        text = data.decode()
        rest, values = _cut(text)
        document = json.loads(rest)
        return (document, rest.encode()) if values and _put_back(document, values) else None
    except (ValueError, RecursionError):
        return None


def _cut(text: str) -> tuple[str, dict[str, list[Any]]]:
    """Raises ValueError: a value that is not what it should be."""
    kept: list[str] = []
    values: dict[str, list[Any]] = {}
    copied = 0
    position = 0
    while (key := _KEY.search(text, position)) is not None:
        position = start = key.end()
        if text[key.start() - 1] == "\\":  # inside of a string
            continue
        end, value = _value(key[1], text, start)
        kept += (text[copied:start], "null")
        copied = position = end
        values.setdefault(key[1], []).append(value)
    return "".join((*kept, text[copied:])), values


def _value(name: str, text: str, start: int) -> tuple[int, Any]:
    """Return where a value ends, and the value."""
    if text.startswith("null", start):
        return start + 4, None
    if name == "logprobs":
        return _logprobs(text, start)
    # An array of numbers ends at the first bracket; of anything else, what comes before that is no JSON.
    end = text.find("]", start) + 1
    if not text.startswith("[", start) or end == 0:
        raise ValueError(f"{name} is no array")
    return end, _numbers(text[start:end])


def _logprobs(text: str, start: int) -> tuple[int, Sampled]:
    """As ``_value``, for the logprobs of a chat choice without alternatives, which is what we ask for.

    They end with the first entry after which a bracket closes. All between belongs to them, with no other content and
    as many entries without alternatives as numbers: so none of the numbers is another choice's or an alternative's.
    """
    begun = _LOGPROBS.match(text, start)
    if begun is None:
        raise ValueError("logprobs of another form")
    numbers: list[str] = []
    end = begun.end()
    if begun[2] != "]":
        entry_ends = f'"top_logprobs":{begun[1]}[]}}'
        end = text.find(f"{entry_ends}]", start) + len(entry_ends) + 1
        numbers = _LOGPROB.findall(text, start, end)
        if text.count(entry_ends, start, end) != len(numbers) or text.count('"content":', start, end) != 1:
            raise ValueError("logprobs with alternatives")
    tail = _TAIL.match(text, end)
    if tail is None:
        raise ValueError("logprobs with more than their content")
    return tail.end(), Sampled(_numbers(f"[{','.join(numbers)}]"))


def _put_back(document: Any, values: dict[str, list[Any]]) -> bool:
    """Put values into their places, in the order of both; False where these are not the same number."""
    if not isinstance(document, dict) or not isinstance(document.get("choices"), list):
        return False
    choices = [choice for choice in document["choices"] if isinstance(choice, dict)]
    for name, found in values.items():
        places = [choice for choice in choices if name in choice]
        if name in document:
            if places:  # which of them came first is not known
                return False
            places = [document]
        if len(places) != len(found):
            return False
        for place, value in zip(places, found, strict=True):
            place[name] = value
    return True

"""Exact tokens of a span: ids and logprobs per choice, as the gateway and the client write them.

Agent Lightning's are read too: integer arrays under its own attribute names, of the first choice only.
"""

import math
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, TypeVar

from lightning_instrumentation import semconv
from lightning_instrumentation.spans.packing import pack_token_ids, unpack_logprobs, unpack_token_ids

from lightning_trainer.ingest.dialects.values import json_of
from lightning_trainer.token_ids import Ids, TokenIds, packed
from lightning_trainer.types import Span

T = TypeVar("T")


class Choice(NamedTuple):
    """One choice of an answer, as recorded."""

    index: int
    response_ids: Ids
    logprobs: tuple[float, ...] | None
    finish_reason: str | None


class Tokens(NamedTuple):
    """One model call, as recorded; ``problems`` describes what could not be read."""

    prompt_ids: Ids
    choices: tuple[Choice, ...]
    problems: tuple[str, ...]


_NO_IDS = TokenIds()
# Interned names are found in a dict without a string comparison.
_response_token_ids = lru_cache(semconv.response_token_ids)
_response_logprobs = lru_cache(semconv.response_logprobs)
_FIRST_RESPONSE = _response_token_ids(0)


FOREIGN_NAMES = ("prompt_token_ids", "response_token_ids", "logprobs.content")
_FOREIGN_PROMPT, _FOREIGN_RESPONSE, _FOREIGN_LOGPROBS = FOREIGN_NAMES


def carries_tokens(span: Span) -> bool:
    """Whether the span itself has a call's token ids."""
    return _carries_own_tokens(span) or carries_foreign_tokens(span)


def carries_foreign_tokens(span: Span) -> bool:
    """Whether the span has token ids under Agent Lightning's names."""
    return _FOREIGN_PROMPT in span.attributes and _FOREIGN_RESPONSE in span.attributes


def _carries_own_tokens(span: Span) -> bool:
    return semconv.PROMPT_TOKEN_IDS in span.attributes and _FIRST_RESPONSE in span.attributes


def token_bytes(span: Span) -> tuple[bytes, ...] | None:
    """Return packed ids of the prompt, then of each choice, empty if missing; None if the span has only text."""
    if span.scope != semconv.GATEWAY_SCOPE and not carries_tokens(span):
        return None
    attributes = span.attributes
    found = (
        attributes.get(semconv.PROMPT_TOKEN_IDS),
        *(attributes.get(_response_token_ids(index)) for index in range(_choice_count(span))),
    )
    if all(isinstance(ids, bytes) and not len(ids) % 4 for ids in found):
        return found  # type: ignore[return-value]
    tokens = read_tokens(span)
    return packed(tokens.prompt_ids), *(packed(choice.response_ids) for choice in tokens.choices)


def read_tokens(span: Span) -> Tokens:
    """Return a span's tokens; missing or unreadable ones are empty, never guessed."""
    if not _carries_own_tokens(span) and carries_foreign_tokens(span):
        return _read_foreign(span)
    problems: list[str] = []
    finish_reasons = span.attributes.get(semconv.FINISH_REASONS)
    reasons = finish_reasons if isinstance(finish_reasons, tuple) else ()
    choices = []
    for index in range(_choice_count(span)):
        response_ids = _numbers(span, _response_token_ids(index), TokenIds, _ids_of_text, problems)
        logprobs = _numbers(span, _response_logprobs(index), unpack_logprobs, unpack_logprobs, problems)
        reason = str(reasons[index]) or None if index < len(reasons) else None
        choices.append(Choice(index, _NO_IDS if response_ids is None else response_ids, logprobs, reason))
    prompt_ids = _numbers(span, semconv.PROMPT_TOKEN_IDS, TokenIds, _ids_of_text, problems)
    return Tokens(_NO_IDS if prompt_ids is None else prompt_ids, tuple(choices), tuple(problems))


def _read_foreign(span: Span) -> Tokens:
    problems: list[str] = []
    prompt_ids, response_ids = (_foreign_ids(span, name, problems) for name in (_FOREIGN_PROMPT, _FOREIGN_RESPONSE))
    logprobs = None
    listed = json_of(span.attributes.get(_FOREIGN_LOGPROBS))
    if isinstance(listed, list):
        read = [one.get("logprob") if isinstance(one, dict) else None for one in listed]
        if all(isinstance(value, int | float) and math.isfinite(value) for value in read):
            logprobs = tuple(map(float, read))  # type: ignore[arg-type]
        else:
            problems.append(
                f"span {span.span_id}: {_FOREIGN_LOGPROBS} has a token without a number; it counts as missing"
            )
    return Tokens(prompt_ids, (Choice(0, response_ids, logprobs, None),), tuple(problems))


def _foreign_ids(span: Span, name: str, problems: list[str]) -> Ids:
    value = span.attributes.get(name)
    try:
        if isinstance(value, tuple):
            return TokenIds(pack_token_ids(value))  # type: ignore[arg-type]
        if isinstance(value, str):
            return _ids_of_text(value)
        raise ValueError(f"it is a {type(value).__name__}")
    except (ValueError, TypeError, OverflowError, struct.error) as error:
        problems.append(f"span {span.span_id}: {name} cannot be read as token ids ({error}); it counts as missing")
        return _NO_IDS


def _choice_count(span: Span) -> int:
    count = span.attributes.get(semconv.CHOICES, 1)
    if not isinstance(count, int) or count <= 1:
        return 1
    # A count without matching data would only cause work.
    return min(count, max(1, len(span.attributes)))


def _ids_of_text(text: str) -> TokenIds:
    return TokenIds(pack_token_ids(unpack_token_ids(text)))


def _numbers(
    span: Span, name: str, read: Callable[[bytes], T], read_text: Callable[[str], T], problems: list[str]
) -> T | None:
    """Read an attribute of packed numbers, or of the JSON text in which the client found them; None if missing."""
    value = span.attributes.get(name)
    if value is None:
        return None
    if isinstance(value, bytes) and not len(value) % 4:
        return read(value)
    if isinstance(value, str):
        try:
            return read_text(value)
        except ValueError as error:
            problems.append(f"span {span.span_id}: {name} is a text and cannot be read ({error}); it counts as missing")
            return None
    size = f"{len(value)} bytes" if isinstance(value, bytes) else f"a {type(value).__name__}"
    problems.append(f"span {span.span_id}: {name} is {size}, not packed 4-byte values, and counts as missing")
    return None

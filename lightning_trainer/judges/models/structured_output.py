"""Parsing a model's answer into a validated object: anything except the exact shape is malformed, with the reason.

Prose or a fence around the JSON is allowed, and a model's thoughts before its answer are ignored
(``<think>...</think>``, even if the endpoint's template has opened it). Two different objects, a duplicate key, a
number as text (``"7/10"``), or one off its scale are not allowed: their meaning would be a guess.
"""

import json
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from lightning_trainer.errors import JudgeError

_LONGEST = 200
_THINKS = re.compile(r"\s*<(?:think|thinking|reasoning)>")
_THOUGHT = re.compile(r"</(?:think|thinking|reasoning)>")
_ANSWERS = re.compile(r"\s*(?:```\w*\s*)?\{")
"""How an answer without thoughts begins, fenced or not."""
_MOST_ERRORS = 4


class MalformedAnswerError(JudgeError):
    """The model's answer does not have the required shape; the model also gets to read the message."""


class Answer(BaseModel):
    """Base of all answers: types are strict, and unknown keys are ignored."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


def shaped(name: str, /, **fields: Any) -> type[Answer]:
    """Return an answer type with these keys, in this order; reasons come before numbers, because a model writes in
    order.

    Args:
        fields: the type of each key.
    """
    made: dict[str, Any] = {key: (kind, ...) for key, kind in fields.items()}
    return create_model(name, __base__=Answer, **made)


def number_between(low: float, high: float) -> Any:
    """Return the type of a number on a scale, both ends included."""
    return Annotated[float, Field(ge=low, le=high)]


def one_of(names: Sequence[str]) -> Any:
    """Return the type of a text that is one of these."""
    return Literal[tuple(names)]


def list_of(item: type[Answer]) -> Any:
    """Return the type of a list of such answers."""
    return list[item]


AnswerType = TypeVar("AnswerType", bound=Answer)


def parsed(text: str, shape: type[AnswerType]) -> AnswerType:
    """Return the only object of that shape in a text.

    Raises:
        MalformedAnswerError: there is none, or more than one.
    """
    text = without_thoughts(text)
    found = list(_objects(text))
    if not found:
        raise MalformedAnswerError(f"it holds no JSON object: {text.strip()[:_LONGEST]!r}")
    read: list[AnswerType] = []
    why: MalformedAnswerError | None = None
    for candidate in found:
        try:
            # Via JSON again, because strict types accept different values from JSON than from Python.
            answer = shape.model_validate_json(json.dumps(candidate, ensure_ascii=False).encode(errors="replace"))
        except ValidationError as error:
            why = MalformedAnswerError(_sentence(error))
        except ValueError as error:
            why = MalformedAnswerError(str(error))
        else:
            if answer not in read:
                read.append(answer)
    if len(read) > 1:
        raise MalformedAnswerError(f"it holds {len(read)} different JSON objects of the kind; give one")
    if not read:
        raise why or MalformedAnswerError("it is not of the schema")
    return read[0]


def without_thoughts(text: str) -> str:
    """Return what a model says after its thoughts; nothing if its thoughts have no end."""
    ended = _THOUGHT.search(text)
    if _THINKS.match(text):
        return "" if ended is None else text[ended.end() :]
    if ended is None or _is_quoted(text, ended.start()) or _is_named_after_the_answer(text, ended):
        return text
    return text[ended.end() :]


def _is_quoted(text: str, mark: int) -> bool:
    """Whether a JSON object reaches across a place in the text: a reason may quote the mark at that place."""
    decoder = json.JSONDecoder()
    at = text.find("{", 0, mark)
    while at >= 0:
        try:
            _, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        if end > mark:
            return True
        at = text.find("{", end, mark)
    return False


def _is_named_after_the_answer(text: str, mark: re.Match[str]) -> bool:
    """Whether a text begins with a JSON object and continues with prose that names the mark: thoughts that the template
    has opened begin differently, or are followed by the answer."""
    begun, after = _ANSWERS.match(text), text[mark.end() :]
    if begun is None or not after.strip() or "{" in after:
        return False
    try:
        json.JSONDecoder().raw_decode(text, begun.end() - 1)
    except (ValueError, RecursionError):
        return False
    return True


@lru_cache(maxsize=256)
def schema_of(shape: type[Answer]) -> dict[str, Any]:
    """Return the JSON schema in the form that endpoints require: every key is required and no other is allowed."""
    return _closed(shape.model_json_schema())


def _closed(node: Any) -> Any:
    if isinstance(node, list):
        return [_closed(one) for one in node]
    if not isinstance(node, dict):
        return node
    closed = {key: _closed(value) for key, value in node.items() if key != "title" or not isinstance(value, str)}
    if closed.get("type") == "object" and "properties" in closed:
        closed |= {"additionalProperties": False, "required": list(closed["properties"])}
    return closed


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield the outermost JSON objects of a text, in order."""
    decoder = json.JSONDecoder(object_pairs_hook=_without_repeats, parse_constant=_no_number)
    at = text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            if isinstance(value, dict):
                yield value
        at = text.find("{", end)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise MalformedAnswerError(f"the key {repeated!r} stands twice in one object")
    return found


def _no_number(constant: str) -> float:
    raise MalformedAnswerError(f"it contains {constant}, which is not a number")


def _sentence(error: ValidationError) -> str:
    details = error.errors(include_url=False)
    said = [
        f"{'.'.join(map(str, detail['loc'])) or 'the answer'}: {detail['msg'].removeprefix('Value error, ')}"
        + (f" (it is {str(detail['input'])[:_LONGEST]!r})" if isinstance(detail["input"], str | int | float) else "")
        for detail in details[:_MOST_ERRORS]
    ]
    more = len(details) - _MOST_ERRORS
    return "; ".join(said) + (f"; and {more} more" if more > 0 else "")

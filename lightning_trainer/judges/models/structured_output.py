"""A model's answer to a checked object: whatever is not exactly what was asked for is malformed, and says why.

Prose or a fence around the JSON is let pass; two different objects, a key that is there twice, a number as text
(``"7/10"``) or one off its scale are not: what was meant would have to be guessed.
"""

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from lightning_trainer.errors import JudgeError

_LONGEST = 200
_MOST_ERRORS = 4


class MalformedAnswerError(JudgeError):
    """The model answered, and not what it was asked for; the message is meant for the model as well."""


class Answer(BaseModel):
    """Base of all answers: types are not converted, and keys that nobody asked for are not looked at."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


def shaped(name: str, /, **fields: Any) -> type[Answer]:
    """Return an answer with these keys, in this order; reasons stand before numbers, as they are written in it.

    Args:
        fields: a type each.
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
    return list[item]


AnswerType = TypeVar("AnswerType", bound=Answer)


def parsed(text: str, shape: type[AnswerType]) -> AnswerType:
    """Return the one object of that shape in a text.

    Raises:
        MalformedAnswerError: there is none, or more than one.
    """
    found = list(_objects(text))
    if not found:
        raise MalformedAnswerError(f"it holds no JSON object: {text.strip()[:_LONGEST]!r}")
    read: list[AnswerType] = []
    why: MalformedAnswerError | None = None
    for candidate in found:
        try:
            # Through JSON once more: what a strict type takes from JSON differs from what it takes from Python.
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


@lru_cache(maxsize=256)
def schema_of(shape: type[Answer]) -> dict[str, Any]:
    """Return the JSON schema as endpoints want it: every key is needed and no other is allowed."""
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
    raise MalformedAnswerError(f"it holds {constant}, which is no number")


def _sentence(error: ValidationError) -> str:
    details = error.errors(include_url=False)
    said = [
        f"{'.'.join(map(str, detail['loc'])) or 'the answer'}: {detail['msg'].removeprefix('Value error, ')}"
        + (f" (it is {str(detail['input'])[:_LONGEST]!r})" if isinstance(detail["input"], str | int | float) else "")
        for detail in details[:_MOST_ERRORS]
    ]
    more = len(details) - _MOST_ERRORS
    return "; ".join(said) + (f"; and {more} more" if more > 0 else "")

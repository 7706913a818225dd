"""Attribute values by expected type; a value of another type counts as absent and is never guessed at.

Some tracers (Spring AI's, by Micrometer) have text as their only type: they write numbers in digits, arrays as JSON.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

from lightning_trainer.otlp.json_spans import parse_json
from lightning_trainer.types import AttributeValue, Span

_LONGEST_COUNT = 19
"""A number of this many digits may not fit 64 bits."""
_NUMBER = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?(E-?[0-9]{1,3})?", re.ASCII)
"""As Java and JavaScript write one."""


def text(span: Span, name: str, *others: str) -> str | None:
    """Return the first of the attributes that is non-empty text."""
    attributes = span.attributes
    value = attributes.get(name)
    if value and isinstance(value, str):
        return value
    for name in others:
        value = attributes.get(name)
        if value and isinstance(value, str):
            return value
    return None


def count(span: Span, *names: str) -> int | None:
    """Return the first of the attributes that is a count."""
    attributes = span.attributes
    for name in names:
        value = attributes.get(name)
        if isinstance(value, int) and value is not True and value is not False and value >= 0:
            return value
        if isinstance(value, str) and len(value) < _LONGEST_COUNT and value.isascii() and value.isdigit():
            return int(value)
    return None


def number(attributes: Mapping[str, AttributeValue], name: str) -> float | None:
    """Return an attribute that is a finite number, or the text of one."""
    value = attributes.get(name)
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return value
    return None


def texts(span: Span, name: str) -> tuple[str | None, ...]:
    """Return the texts of an array attribute; an empty text becomes None."""
    value = span.attributes.get(name)
    if isinstance(value, str) and isinstance(listed := json_of(value), list):
        value = tuple(listed)
    if not isinstance(value, tuple):
        return ()
    for item in value:
        if not item or not isinstance(item, str):
            return texts_of(value)
    return value  # pyright: ignore[reportReturnType]


def texts_of(items: Iterable[Any]) -> tuple[str | None, ...]:
    """Return the items; None for each that is not a non-empty text."""
    return tuple(item if isinstance(item, str) and item else None for item in items)


def json_of(value: AttributeValue | None) -> Any:
    """Return the parsed JSON; None if the text is not JSON."""
    if not isinstance(value, str | bytes):
        return None
    try:
        return parse_json(value)
    except orjson.JSONDecodeError:
        return None


def objects(value: Any) -> tuple[Mapping[str, Any], ...]:
    """Return the JSON objects of an array."""
    return tuple(item for item in value if isinstance(item, Mapping)) if isinstance(value, list) else ()


def arguments(value: Any) -> Any:
    """Return a tool call's arguments as parsed JSON; text that is not a JSON object or array stays text."""
    parsed = json_of(value)
    return parsed if isinstance(parsed, dict | list) else value


def tool_call_part(call_id: Any, name: Any, given: Any) -> dict[str, Any]:
    """Return a tool call as a message part; ``given`` are its arguments as written."""
    return {"type": "tool_call", "id": call_id, "name": name, "arguments": arguments(given)}


def tool_message(call_id: Any, content: Any) -> Mapping[str, Any]:
    """Return a tool's result as a message."""
    return {"role": "tool", "parts": [{"type": "tool_call_response", "id": call_id, "response": content or ""}]}


def numbered(span: Span, prefix: str) -> Iterator[dict[str, AttributeValue]]:
    """Yield the attributes of ``prefix.0.``, ``prefix.1.`` ... without that prefix, in order.

    A number that is missing before the last one gives an empty item: tracers also number the items that they leave out,
    and no reader may take the rest for the whole.
    """
    yield from unflattened(span.attributes, prefix)


def unflattened(attributes: Mapping[str, AttributeValue], prefix: str) -> Iterator[dict[str, AttributeValue]]:
    """Yield the items of numbered attributes, as in ``numbered``, from a mapping."""
    head = f"{prefix}."
    items: dict[int, dict[str, AttributeValue]] = {}
    for name, value in attributes.items():
        if name.startswith(head):
            number, dot, rest = name[len(head) :].partition(".")
            if dot and number.isascii() and number.isdigit() and len(number) < 6:
                items.setdefault(int(number), {})[rest] = value
    # A number far beyond the others must not fill the memory; whatever this cuts off has a gap before it.
    for number in range(min(max(items, default=-1) + 1, 2 * len(items))):
        yield items.get(number, {})

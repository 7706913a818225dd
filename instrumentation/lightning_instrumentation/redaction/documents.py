"""The texts inside JSON: content is changed, structure is not.

Keys, numbers and, outside of arguments and results, roles, types, ids, and names stay as they are: without them a call
is no longer valid.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_STRUCTURE = frozenset(
    {"role", "type", "id", "call_id", "tool_call_id", "name", "finish_reason", "mime_type", "modality", "required"}
)
_PAYLOAD = frozenset({"arguments", "args", "response", "result", "input", "output"})
"""Under these keys everything is the user's or the model's content."""

_IMAGE = re.compile(r"(?:data:image/[\w.+-]+;base64,)?(?:iVBORw0KGgo|/9j/|R0lGOD|UklGR)[A-Za-z0-9+/]*={0,2}")
"""The first characters of PNG, JPEG, GIF, and WebP in base64."""

Text = Callable[[str], str]
Named = Callable[[str, str], str]


def is_image(text: str) -> bool:
    """Whether a text is exactly an image in base64: cutting a piece out of it would destroy the image."""
    return _IMAGE.fullmatch(text) is not None


def redacted(document: Any, text: Text, named: Named, *, payload: bool) -> Any:
    """Return the document with its texts changed; the same object if nothing changed.

    Args:
        text: changes a text.
        named: changes a text that has a key, its own or that of its list; called with the key first.
        payload: arguments or a result, which have no fixed structure.
    """
    if isinstance(document, str):
        return text(document)
    if isinstance(document, list):
        changed = [redacted(one, text, named, payload=payload) for one in document]
        return document if all(map(_same, changed, document)) else changed
    if isinstance(document, dict):
        values = {key: _member(key, one, text, named, payload=payload) for key, one in document.items()}
        return document if all(map(_same, values.values(), document.values())) else values
    return document


def _member(key: str, value: Any, text: Text, named: Named, *, payload: bool) -> Any:
    if not payload and key in _STRUCTURE and not isinstance(value, dict):
        return value
    if isinstance(value, str):
        return named(key, value)
    if isinstance(value, list):
        changed = [_member(key, one, text, named, payload=payload) for one in value]
        return value if all(map(_same, changed, value)) else changed
    return redacted(value, text, named, payload=payload or key in _PAYLOAD)


def _same(one: object, other: object) -> bool:
    return one is other

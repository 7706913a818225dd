"""Replaces media that are embedded in a span's attributes with references.

A part that carries bytes (GenAI's ``blob``, and Anthropic's, Gemini's, and MCP's equivalents) becomes a GenAI part of
type ``uri`` whose URI is ``sha256:`` and the hash of the bytes; a ``data:`` URL becomes that URI. Anything that is not
base64 is left as it is, and so is everything inside a text. Source: OpenTelemetry GenAI semantic conventions, message
parts; RFC 2397.
"""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lightning_trainer.types import AttributeValue, Span

SCHEME = "sha256:"
"""The scheme of a reference: the hash of the bytes follows, in lower-case hex."""
_SHORTEST = 40
"""Length of the shortest attribute that can carry bytes and their type."""
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[\w.+-]+=[\w.+-]+)*;base64,([A-Za-z0-9+/=]+)")
_KINDS = ("image/", "audio/", "video/", "application/pdf")
_MIME_NAMES = ("mime_type", "media_type", "mimeType")
_BODY_NAMES = ("content", "data")


@dataclass(frozen=True, slots=True)
class Embedded:
    """Media taken out of a span."""

    digest: str
    """SHA-256, hex."""
    mime_type: str
    body: bytes


@dataclass(slots=True)
class Exchanged:
    """Spans with references, and the media that they refer to."""

    spans: list[Span] = field(default_factory=list)
    media: dict[tuple[str, str], dict[str, Embedded]] = field(default_factory=dict)
    """By (trace id, span id), then by hash."""


def exchange(spans: Sequence[Span]) -> Exchanged:
    """Return the spans without embedded media; spans without any are the same objects."""
    exchanged = Exchanged()
    for span in spans:
        found: dict[str, Embedded] = {}
        attributes = _attributes(span.attributes, found)
        exchanged.spans.append(replace(span, attributes=attributes) if found else span)
        if found:
            exchanged.media.setdefault((span.trace_id, span.span_id), found)
    return exchanged


def _attributes(attributes: Mapping[str, AttributeValue], found: dict[str, Embedded]) -> Mapping[str, AttributeValue]:
    changed: dict[str, AttributeValue] = {}
    for name, value in attributes.items():
        if isinstance(value, str) and _may_carry_bytes(value):
            text = _text(value, found)
            if text is not value:
                changed[name] = text
    return {**attributes, **changed} if changed else attributes


def _may_carry_bytes(text: str) -> bool:
    return len(text) >= _SHORTEST and (";base64," in text or '"blob"' in text or '"data"' in text)


def _text(text: str, found: dict[str, Embedded]) -> str:
    if text[0] not in "[{":
        return _leaf(text, found)
    found_here: dict[str, Embedded] = {}
    try:
        document = json.loads(text)
        changed = _document(document, found_here)
        # Half of a surrogate pair is only possible as an escape.
        written = (
            json.dumps(changed, ensure_ascii="\\ud" in text.lower(), separators=(",", ":")) if found_here else text
        )
    except (ValueError, RecursionError):  # not JSON, or nested too deeply: it is left unchanged
        return text
    found |= found_here
    return written


def _document(document: Any, found: dict[str, Embedded]) -> Any:
    if isinstance(document, str):
        return _leaf(document, found)
    if isinstance(document, list):
        changed = [_document(one, found) for one in document]
        return document if all(map(_same, changed, document)) else changed
    if isinstance(document, dict):
        if (part := _part(document, found)) is not None:
            return part
        values = {key: _document(one, found) for key, one in document.items()}
        return document if all(map(_same, values.values(), document.values())) else values
    return document


def _leaf(text: str, found: dict[str, Embedded]) -> str:
    """Replace a text with a reference if all of it is a ``data:`` URL."""
    if not text.startswith("data:") or (match := _DATA_URL.fullmatch(text)) is None:
        return text
    embedded = _embedded(match[1], match[2], found) if match[1].startswith(_KINDS) else None
    return text if embedded is None else f"{SCHEME}{embedded.digest}"


def _part(part: dict[str, Any], found: dict[str, Embedded]) -> dict[str, Any] | None:
    """Return the reference for a part's bytes; None if it has none."""
    mime_type = next((kind for name in _MIME_NAMES if isinstance(kind := part.get(name), str)), None)
    body = next((text for name in _BODY_NAMES if isinstance(text := part.get(name), str)), None)
    if mime_type is None or not body or not (part.get("type") == "blob" or mime_type.startswith(_KINDS)):
        return None
    embedded = _embedded(mime_type, body, found)
    if embedded is None:
        return None
    rest = {name: value for name, value in part.items() if name not in ("type", *_MIME_NAMES, *_BODY_NAMES)}
    return {
        "type": "uri",
        "modality": mime_type.partition("/")[0],
        **rest,
        "mime_type": mime_type,
        "uri": f"{SCHEME}{embedded.digest}",
        "size": len(embedded.body),
    }


def _embedded(mime_type: str, encoded: str, found: dict[str, Embedded]) -> Embedded | None:
    try:
        body = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return None
    digest = hashlib.sha256(body).hexdigest()
    return found.setdefault(digest, Embedded(digest, mime_type, body))


def _same(one: object, other: object) -> bool:
    return one is other

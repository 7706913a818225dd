"""Encodes spans as OTLP requests, one span each: hand-written protobuf.

The official encoder first builds an object for every value, which costs more than everything else about a span. Field
numbers are those of opentelemetry-proto v1 (``trace.proto``, ``common.proto``, ``resource.proto``); the bytes equal the
official encoder's. Source: opentelemetry-proto 1.x; protobuf's "Encoding".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lightning_instrumentation import semconv

if TYPE_CHECKING:
    from opentelemetry.trace import Link

    from lightning_instrumentation.spans.span_record import Event, SpanRecord

# A cache by object identity, for objects that cannot be hashed or are slow to hash.

T = TypeVar("T")
R = TypeVar("R")


class ByIdentity(Generic[T, R]):
    """Calls ``make`` once per object and caches up to ``most`` results; the cache is emptied when full."""

    def __init__(self, make: Callable[[T], R], *, most: int) -> None:
        self._make = make
        self._most = most
        # The object is kept next to its result, so that its ``id`` is not reused.
        self._known: dict[int, tuple[T, R]] = {}

    def __call__(self, thing: T) -> R:
        known = self._known.get(id(thing))
        if known is None:
            if len(self._known) >= self._most:
                self._known.clear()
            known = self._known[id(thing)] = thing, self._make(thing)
        return known[1]


_HAS_IS_REMOTE, _IS_REMOTE = 0x100, 0x200
_SHORT = 40
"""Maximum length of a text worth caching: names, not ids."""
_ONLY_TEXTS = {str}
_U64, _INT64 = 2**64 - 1, range(-(2**63), 2**63)
_ONE_BYTE = tuple(bytes((number,)) for number in range(0x80))
_fixed32, _fixed64, _double = struct.Struct("<I").pack, struct.Struct("<Q").pack, struct.Struct("<d").pack


def _varint(number: int) -> bytes:
    if number < 0x80:
        return _ONE_BYTE[number]
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def _field(tag: bytes, content: bytes) -> bytes:
    """Encode a length-delimited field: text, bytes, or a message."""
    return tag + _varint(len(content)) + content


def _text(text: str) -> bytes:
    # Half of a surrogate pair has no UTF-8; its JSON escape is written.
    return text.encode("utf-8", "backslashreplace")


# -- AnyValue --------------------------------------------------------------------------------------------------------


def _str_value(value: str) -> bytes:
    return _field(b"\x0a", _text(value))


def _bool_value(value: bool) -> bytes:
    return b"\x10\x01" if value else b"\x10\x00"


def _int_value(value: int) -> bytes:
    return b"\x18" + _varint(int(value) & _U64) if value in _INT64 else _str_value(str(value))


def _float_value(value: float) -> bytes:
    return b"\x21" + _double(value)


def _bytes_value(value: bytes) -> bytes:
    return _field(b"\x3a", value)


def _array_value(values: Sequence[Any]) -> bytes:
    return _field(b"\x2a", b"".join([_field(b"\x0a", _any_value(value)) for value in values]))


def _map_value(values: Mapping[Any, Any]) -> bytes:
    return _field(b"\x32", _attributes(b"\x0a", {str(key): value for key, value in values.items()}))


_WRITERS: dict[type, Callable[[Any], bytes]] = {
    str: _str_value,
    bool: _bool_value,
    int: _int_value,
    float: _float_value,
    bytes: _bytes_value,
    list: _array_value,
    tuple: _array_value,
    dict: _map_value,
    type(None): lambda value: b"",
}
_KINDS: tuple[tuple[type, Callable[[Any], bytes]], ...] = (
    (str, _str_value),
    (int, _int_value),
    (float, _float_value),
    (bytes, _bytes_value),
    (Sequence, _array_value),
    (Mapping, _map_value),
)


def _any_value(value: Any) -> bytes:
    """Encode a value; types that OTLP lacks, including integers beyond 64 bits, are written as text."""
    write = _WRITERS.get(type(value))
    if write is None:
        write = next((write for kind, write in _KINDS if isinstance(value, kind)), None)
    return write(value) if write is not None else _str_value(str(value))


def _attribute(tag: bytes, key: str, value: Any) -> bytes:
    return _field(tag, _field(b"\x0a", _text(key)) + _field(b"\x12", _any_value(value)))


# Most attributes of a span are names and numbers that its neighbors have, too, so their encoding is cached: in plain
# dicts, because an ``lru_cache`` costs three times as much; one per type, because 1 equals True; emptied when full.
_MOST_REMEMBERED = 4096
_known: dict[type, dict[tuple[str, Any], bytes]] = {str: {}, int: {}, bool: {}, tuple: {}}
_known_texts, _known_numbers = _known[str], _known[int]


def _remembered(key: str, value: Any) -> bytes:
    """Return a cached attribute without its tag."""
    known = _known[type(value)]
    written = known.get((key, value))
    if written is None:
        if len(known) >= _MOST_REMEMBERED:
            known.clear()
        written = known[key, value] = _attribute(b"", key, value)
    return written


@lru_cache(maxsize=1024)
def _key(key: str) -> bytes:
    return _field(b"\x0a", _text(key)) + b"\x12"


def _long_attribute(tag: bytes, key: str, value: bytes, kind: bytes) -> tuple[bytes, bytes]:
    """Return the header of a text or bytes attribute, and its value: messages and token ids are copied only once, at
    the end."""
    named, size = _key(key), len(value)
    kind += _varint(size)
    size += len(kind)
    known = _varint(size)
    return tag + _varint(len(named) + len(known) + size) + named + known + kind, value


def _attribute_parts(tag: bytes, attributes: Mapping[str, Any]) -> list[bytes]:
    parts: list[bytes] = []
    for key, value in attributes.items():
        kind = type(value)
        if kind is str:
            if len(value) > _SHORT or key == semconv.RESPONSE_ID:  # unique to this span
                parts += _long_attribute(tag, key, _text(value), b"\x0a")
            else:
                parts += tag, _known_texts.get((key, value)) or _remembered(key, value)
        elif kind is int:
            parts += tag, _known_numbers.get((key, value)) or _remembered(key, value)
        elif kind is bytes:
            parts += _long_attribute(tag, key, value, b"\x3a")
        elif kind is bool or (kind is tuple and set(map(type, value)) == _ONLY_TEXTS):
            parts += tag, _remembered(key, value)
        else:
            parts.append(_attribute(tag, key, value))
    return parts


def _attributes(tag: bytes, attributes: Mapping[str, Any]) -> bytes:
    return b"".join(_attribute_parts(tag, attributes))


# -- Span ------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _named(tag: bytes, text: str) -> bytes:
    return _field(tag, _text(text)) if text else b""


@lru_cache(maxsize=256)
def _status(code: int, message: str) -> bytes:
    return _field(b"\x7a", _named(b"\x12", message) + (b"\x18" + _ONE_BYTE[code] if code else b""))


def _event(event: Event) -> bytes:
    return b"\x09" + _fixed64(event.time_ns) + _named(b"\x12", event.name) + _attributes(b"\x1a", event.attributes)


def _link(link: Link) -> bytes:
    context = link.context
    flags = _HAS_IS_REMOTE | (_IS_REMOTE if context.is_remote else 0)
    ids = b"\x0a\x10" + context.trace_id.to_bytes(16, "big") + b"\x12\x08" + context.span_id.to_bytes(8, "big")
    return ids + _attributes(b"\x22", link.attributes or {}) + b"\x35" + _fixed32(flags)


_shared_attributes: ByIdentity[Mapping[str, Any], bytes] = ByIdentity(
    partial(_attributes, b"\x4a"), most=_MOST_REMEMBERED
)


def _own_and_shared(span: SpanRecord) -> list[bytes]:
    own = span.attributes
    for shared in span.shared:
        if not shared.keys().isdisjoint(own):
            merged: dict[str, Any] = {}
            for attributes in (*span.shared, own):
                merged.update(attributes)
            return _attribute_parts(b"\x4a", merged)
    return [*map(_shared_attributes, span.shared), *_attribute_parts(b"\x4a", own)]


def _span_parts(span: SpanRecord) -> list[bytes]:
    """Return an ended span as the message ``opentelemetry.proto.trace.v1.Span``, in pieces."""
    return [
        b"\x0a\x10",
        span.trace_id.to_bytes(16, "big"),
        b"\x12\x08",
        span.span_id.to_bytes(8, "big"),
        b"" if span.parent is None else b"\x22\x08" + span.parent.span_id.to_bytes(8, "big"),
        _named(b"\x2a", span.name),
        b"\x30",
        _ONE_BYTE[span.kind.value + 1],
        b"\x39",
        _fixed64(span.start_ns),
        b"\x41",
        _fixed64(span.end_ns),
        *_own_and_shared(span),
        *[_field(b"\x5a", _event(event)) for event in span.events],
        *[_field(b"\x6a", _link(link)) for link in span.links],
        _status(span.status.value, span.status_message),
        b"\x85\x01",
        _fixed32(_HAS_IS_REMOTE | (_IS_REMOTE if span.parent is not None and span.parent.is_remote else 0)),
    ]


class RequestWriter:
    """Encodes ``ExportTraceServiceRequest`` messages; resource and scope are encoded once."""

    def __init__(self, resource: Mapping[str, Any], scope: str, version: str) -> None:
        self._resource = _field(b"\x0a", _attributes(b"\x0a", resource))
        self._scope = _field(b"\x0a", _named(b"\x0a", scope) + _named(b"\x12", version))

    def request(self, span: SpanRecord) -> bytes:
        """Return a serialized request with this one span."""
        parts = _span_parts(span)
        size = sum(map(len, parts))
        before = self._scope + b"\x12" + _varint(size)
        before = self._resource + b"\x12" + _varint(len(before) + size) + before
        return b"".join((b"\x0a", _varint(len(before) + size), before, *parts))

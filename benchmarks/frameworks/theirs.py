"""Compares the spans that another instrumentation's own exporter sent with ours and without: they have to be the same.

Name, kind, status, scope, names of the spans above, attributes, and events of all spans that a program sends are
compared. What differs between any two runs is left out: ids, times, and the numbers that the scripted engine counts up.
"""

import base64
import gzip
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from benchmarks.frameworks.program import MODEL

Told = tuple[tuple[str, str], ...]
"""What one span says: pairs of name and value, sorted."""

_DIFFERS = (
    # Numbers of the scripted engine's answers, in ids and in words.
    (re.compile(r"chatcmpl-\d+"), "chatcmpl-N"),
    (re.compile(r"call_\d+"), "call_N"),
    (re.compile(r"answer \d+ of"), "answer N of"),
    (re.compile(r"https?://127\.0\.0\.1:\d+/v1/?"), "BASE"),
    # Ids and times in attributes.
    (
        re.compile(r"\b(?:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32}|[0-9a-f]{16})\b"),
        "ID",
    ),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)?"), "TIME"),
    (re.compile(r"0x[0-9a-f]{6,}"), "ADDRESS"),
    (re.compile(r"took \d+\.\d+s"), "took SECONDS"),
)
_TIME = re.compile(r"(?i)time|duration|latency|took|_ns$|_ms$|\.pid$|thread")
"""Attributes whose value is a time, a process, or a thread."""


def bodies(collected: Sequence[str]) -> list[bytes]:
    """Return the OTLP requests that the scripted engine kept, uncompressed."""
    decoded = (base64.b64decode(one) for one in collected)
    return [gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body for body in decoded]


def told(requests: Iterable[bytes], answered_by: str | None = None) -> Counter[Told]:
    """Return what the spans of these requests say, and how many say it.

    Args:
        answered_by: the model that answered in place of the requested one, and whose answers have its name.
    """
    spans: dict[bytes, Any] = {}
    scopes: dict[bytes, str] = {}
    for body in requests:
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for of_scope in of_resource.scope_spans:
                for span in of_scope.spans:
                    # MLflow and Logfire send a span when it begins and again when it ends: the last one counts.
                    spans[span.span_id] = span
                    scopes[span.span_id] = of_scope.scope.name
    said = (_told(span, scopes[span.span_id], _above(span, spans)) for span in spans.values())
    if answered_by is None:
        return Counter(said)
    name = re.compile(rf"\b{re.escape(answered_by)}\b")
    return Counter(tuple((key, name.sub(MODEL, value)) for key, value in one) for one in said)


def changes(alone: Counter[Told], beside: Counter[Told]) -> list[str]:
    """Return a sentence for each difference between the spans next to ours and those alone; none if there is none."""
    missing, added = list((alone - beside).elements()), list((beside - alone).elements())
    said = []
    for one, other in zip(missing, added, strict=False):
        was, now = dict(one), dict(other)
        differing = [key for key in sorted(was.keys() | now.keys()) if was.get(key) != now.get(key)]
        said += [f"{was['name']}: {key} was {_short(was.get(key))}, is {_short(now.get(key))}" for key in differing[:3]]
    said += [f"{dict(one)['name']} is missing" for one in missing[len(added) :]]
    return said + [f"{dict(one)['name']} is one more" for one in added[len(missing) :]]


def _told(span: Any, scope: str, above: Sequence[str]) -> Told:
    said = {"name": _plain(span.name), "kind": str(span.kind), "scope": scope, "status": str(span.status.code)}
    said |= {"above": " < ".join(map(_plain, above)), "links": str(len(span.links))}
    said |= {f"attribute {key}": value for key, value in _attributes(span.attributes).items()}
    for number, event in enumerate(span.events):
        said[f"event {number}"] = event.name
        said |= {f"event {number} {key}": value for key, value in _attributes(event.attributes).items()}
    return tuple(sorted(said.items()))


def _attributes(attributes: Any) -> Mapping[str, str]:
    return {one.key: "TIME" if _TIME.search(one.key) else _plain(_value(one.value)) for one in attributes}


def _value(value: Any) -> str:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return str([_value(one) for one in value.array_value.values])
    if kind == "kvlist_value":
        return str({one.key: _value(one.value) for one in value.kvlist_value.values})
    return str(getattr(value, kind)) if kind else ""


def _plain(text: str) -> str:
    for pattern, word in _DIFFERS:
        text = pattern.sub(word, text)
    return text


def _above(span: Any, spans: Mapping[bytes, Any]) -> list[str]:
    """Return the names of the spans above, the nearest first."""
    names, seen = [], {span.span_id}
    while span.parent_span_id and span.parent_span_id not in seen:
        seen.add(span.parent_span_id)
        if span.parent_span_id not in spans:
            return [*names, "(not sent)"]
        span = spans[span.parent_span_id]
        names.append(span.name)
    return names


def _short(value: str | None) -> str:
    return "absent" if value is None else repr(value if len(value) <= 60 else f"{value[:57]}...")

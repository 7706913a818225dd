"""Brings spans into one form, whatever their programs could write, because the store reads only attributes.

A program that can set no attributes on its spans may name its attempt elsewhere: in its resource
(``OTEL_RESOURCE_ATTRIBUTES`` of a process that makes one attempt), or in the metadata of the AI SDK's telemetry. A
span's own attributes take precedence. If any span of its trace names another attempt than the resource does, the
resource is not used for a span that names none, because that other span may be its ancestor. An agent's name in the
resource is not copied, because any ancestor may name the agent: ``ancestry.process_agent``.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace

from lightning_instrumentation import semconv

from lightning_trainer.ingest.dialects.lightning import is_ours
from lightning_trainer.ingest.dialects.registry import with_response_id
from lightning_trainer.types import AttributeValue, Span

_IDS = (semconv.ROLLOUT_ID, semconv.ATTEMPT_ID)
_PLACE = (*_IDS, semconv.TASK_ID, semconv.GROUP_ID, semconv.ROLLOUT_MODE)
_METADATA = {name: f"ai.telemetry.metadata.{name}" for name in (*_PLACE, semconv.AGENT_NAME)}
_NOTHING: Mapping[str, AttributeValue] = {}


def normalize_spans(spans: Sequence[Span]) -> list[Span]:
    """Return the spans of one delivery with their responses' ids, attempts, and roots in the form that the store reads.

    Our own spans already have all of these except the first.
    """
    foreign = [span for span in spans if not is_ours(span)]
    named = _attempts_by_trace(spans) if any(semconv.ATTEMPT_ID in span.resource for span in foreign) else {}
    return [with_response_id(span if is_ours(span) else _placed(span, named)) for span in spans]


def _attempts_by_trace(spans: Iterable[Span]) -> dict[str, set[AttributeValue]]:
    named: dict[str, set[AttributeValue]] = {}
    for span in spans:
        if semconv.ATTEMPT_ID in span.attributes:
            named.setdefault(span.trace_id, set()).add(span.attributes[semconv.ATTEMPT_ID])
    return named


def _placed(span: Span, named: Mapping[str, Set[AttributeValue]]) -> Span:
    own = span.attributes
    told = {name: own[written] for name, written in _METADATA.items() if written in own and name not in own}
    told = {**_of_process(span, {**told, **own}, named.get(span.trace_id, frozenset())), **told}
    marked = own.get(semconv.ROLLOUT_ROOT)
    if isinstance(marked, str) and marked.lower() == "true":  # Spring AI's tracer has no other type than text
        return replace(span, attributes={**told, **own, semconv.ROLLOUT_ROOT: True})
    return replace(span, attributes={**told, **own}) if told.keys() - own.keys() else span


def _of_process(
    span: Span, said: Mapping[str, AttributeValue], in_trace: Set[AttributeValue]
) -> Mapping[str, AttributeValue]:
    """Return what the resource tells about the span's attempt; nothing if the span is, or may be, of another attempt.

    Args:
        said: the span's own attributes.
        in_trace: the attempts that spans of its trace name.
    """
    resource = span.resource
    if any(name in said and name in resource and said[name] != resource[name] for name in _IDS):
        return _NOTHING
    if semconv.ATTEMPT_ID not in said and in_trace - {resource.get(semconv.ATTEMPT_ID)}:
        return _NOTHING
    return {name: resource[name] for name in _PLACE if name in resource}

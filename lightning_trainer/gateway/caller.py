"""The caller's identity: W3C ``traceparent`` and our own keys of W3C ``baggage``.

Malformed and oversized input is ignored. Our Python client sends both a second time (``hosts.OURS``), and the copies
take precedence: an instrumentation of the caller's HTTP client may have replaced the others. The only other header that
is read says that a call's texts are not to be recorded (``hosts.CAPTURE_CONTENT``), so no credential ever gets into a
span. A caller that sends none of these may be identified by its URL (``/rollouts/{id}/v1``): all calls of a rollout
then form one trace, below the root span that arrives when the rollout ends.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from lightning_instrumentation import semconv
from lightning_instrumentation.routing.hosts import CAPTURE_CONTENT, LONGEST_VALUE, OURS
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers

from lightning_trainer.ingest.http.rollout_urls import RolloutUrl, root_span_ids

_PARENT, _BAGGAGE = "traceparent", "baggage"
_trace_context = TraceContextTextMapPropagator()
_LONGEST_BAGGAGE, _LONGEST_MEMBER = 8192, 4096
"""Bytes, percent-encoded: what W3C's propagators read."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The place of a call in the caller's trace."""

    trace_id: str
    """The caller's trace id, or a new one."""
    parent_span_id: str | None
    attributes: Mapping[str, str]
    """Identity attributes by name; only those that the caller sent."""
    capture_content: bool = True
    """False: the caller, or its base URL, wants no texts of the call recorded."""


def read_caller(headers: Headers, place: RolloutUrl | None = None) -> Caller:
    """Read the caller's identity from request headers.

    Args:
        place: the rollout whose base URL the call used; baggage is sent per call and takes precedence over it.
    """
    parent = trace.get_current_span(_trace_context.extract({_PARENT: parent_of(headers)}, Context())).get_span_context()
    members = {**_members(headers, _BAGGAGE), **_members(headers, f"{OURS}{_BAGGAGE}")}
    attributes = {
        key: value for key in semconv.GATEWAY_BAGGAGE_KEYS if 0 < len(value := members.get(key, "")) <= LONGEST_VALUE
    }
    capture_content = headers.get(CAPTURE_CONTENT, "1") == "1" and (place is None or place.capture_content)
    if place is not None:
        named = {semconv.ROLLOUT_ID: place.rollout_id, semconv.ATTEMPT_ID: place.rollout_id}
        metadata = {f"{semconv.METADATA}{name}": value for name, value in place.metadata.items()}
        attributes = {**named, semconv.AGENT_NAME: place.agent, **metadata, **attributes}
    if not parent.is_valid:
        if place is not None:
            ids = root_span_ids(attributes[semconv.ROLLOUT_ID], attributes[semconv.ATTEMPT_ID])
            return Caller(*ids, attributes, capture_content)
        return Caller(os.urandom(16).hex(), None, attributes, capture_content)
    return Caller(f"{parent.trace_id:032x}", f"{parent.span_id:016x}", attributes, capture_content)


def parent_of(headers: Mapping[str, str]) -> str:
    """Return the ``traceparent`` of a call, which is the same for all its tries; empty if it has none."""
    return headers.get(f"{OURS}{_PARENT}") or headers.get(_PARENT, "")


def _members(headers: Headers, name: str) -> dict[str, str]:
    """Return the members of all headers of that name, which form one list; of two with the same key the last counts."""
    # OpenTelemetry's propagator for Python reads only the first header, and mistakes a member's properties for a part
    # of its value, and a plus sign for a space.
    header = ",".join(headers.getlist(name))
    if len(header) > _LONGEST_BAGGAGE:
        return {}
    members: dict[str, str] = {}
    for member in header.split(","):
        key, _, value = member.partition("=")
        if len(member) <= _LONGEST_MEMBER and member.isascii():
            members[key.strip()] = unquote(value.partition(";")[0].strip())
    return members

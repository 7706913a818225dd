"""Trace context and identity as HTTP headers, for hosts that the user named.

Source: W3C Trace Context (``traceparent``) and W3C Baggage; values are percent-encoded, so any id survives.
"""

from urllib.parse import quote

from opentelemetry.trace import SpanContext

from lightning_instrumentation import semconv
from lightning_instrumentation.scope import Agent, Identity


def traceparent(span: SpanContext) -> str:
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags & 1:02x}"


def baggage(identity: Identity | None, agent: Agent | None) -> str:
    """Return our members alone: what else the user keeps in baggage is none of our business."""
    members = identity.attributes() if identity else {}
    if agent is not None:
        members[semconv.AGENT_NAME] = agent.name
    return ",".join(f"{key}={quote(value, safe='')}" for key, value in members.items() if key in semconv.BAGGAGE_KEYS)

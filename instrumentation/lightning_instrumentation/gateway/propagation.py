"""Trace context and identity as HTTP headers, for hosts that the user named.

Source: W3C Trace Context (``traceparent``) and W3C Baggage; values are percent-encoded, so any id survives.
"""

from functools import lru_cache, partial
from urllib.parse import quote

from lightning_instrumentation import semconv
from lightning_instrumentation.scope import Agent, Identity
from lightning_instrumentation.telemetry.sequence import sequences

_quoted = lru_cache(maxsize=1024)(partial(quote, safe="", errors="replace"))


def traceparent(trace_id: int, span_id: int) -> str:
    """Args: of a span that is recorded, as all of ours are."""
    return f"00-{trace_id:032x}-{span_id:016x}-01"


def baggage(identity: Identity | None, agent: Agent | None, state: str | None = None) -> str:
    """Return our members alone: what else the user keeps in baggage is none of our business."""
    members = identity.attributes() if identity else {}
    if identity is not None and identity.attempt_id is not None:
        numbering = sequences.started(identity.attempt_id)
        if numbering is not None:
            # The gateway's record tells the daemon of spans that have not come yet, whichever process they are from.
            members[semconv.SEQUENCE], members[semconv.SEQUENCE_STARTED] = numbering[0], str(numbering[1])
    if agent is not None:
        members[semconv.AGENT_NAME] = agent.name
    if state is not None:
        members[semconv.STATE] = state
    known = semconv.GATEWAY_BAGGAGE_KEYS
    return ",".join(f"{key}={_quoted(value)}" for key, value in members.items() if key in known)

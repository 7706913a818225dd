"""Agents named by the program's own OpenTelemetry setup: on the active span, its ancestors, or in baggage.

Frameworks that follow the GenAI conventions (Google ADK, Strands, Pydantic AI with ``instrument_all`` ...) put
``gen_ai.agent.name`` on their spans, some on every span of an agent and some only on its first. An SDK span has no
reference to its parent object, so the agent's name is attached to each span when it starts. Only the name is attached:
the parent would keep every ancestor in memory. What is exported of a span does not change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opentelemetry import baggage, trace
from opentelemetry import context as otel_context

from lightning_instrumentation import semconv
from lightning_instrumentation.failures import guarded
from lightning_instrumentation.hooks import patching
from lightning_instrumentation.scope import Agent

_NOBODY_CHOSE = frozenset({"agent", "strands agents"})
"""Default names that frameworks give to unnamed agents."""
_LIES_IN = "_lightning_agent"


def watch_spans(module: Any) -> None:
    """Hook of ``opentelemetry.sdk.trace``."""
    patching.wrap(module, "Span.start", _start)


def _start(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    guarded("users-span", _tell, instance, args[1] if len(args) > 1 else kwargs.get("parent_context"))
    return wrapped(*args, **kwargs)


def _tell(span: Any, context: Any) -> None:
    agent = _agent_of(trace.get_current_span(context))
    if agent is not None:
        setattr(span, _LIES_IN, agent)


def agent_here() -> Agent | None:
    """Return the agent of the nearest span that names one, else the agent in the baggage; None if neither names one."""
    context = otel_context.get_current()
    if not context:  # the program does not use OpenTelemetry itself
        return None
    return _agent_of(trace.get_current_span(context)) or _of_baggage(context)


def _agent_of(span: Any) -> Agent | None:
    above: Agent | None = getattr(span, _LIES_IN, None)
    attributes = getattr(span, "attributes", None)
    name = attributes.get(semconv.AGENT_NAME) if attributes else None
    if not isinstance(name, str) or not name or (above is not None and above.name == name):
        return above
    return Agent(name, "span", f"{span.get_span_context().span_id:016x}", explicit=name.lower() not in _NOBODY_CHOSE)


def _of_baggage(context: Any) -> Agent | None:
    name = baggage.get_baggage(semconv.AGENT_NAME, context)
    return Agent(name, "baggage") if isinstance(name, str) and name else None

"""A parent span never arrived, nor did the attributes that only it has: agent and attempt of the calls below it.

A gateway record below a span of the caller's own tracer is complete without that span, so it counts only if the call
has no agent or no attempt.
"""

from lightning_instrumentation import semconv

from lightning_trainer.explain.case import Case
from lightning_trainer.explain.finding import Finding, counted, listed
from lightning_trainer.ingest.ancestry import SpanKey, key_of
from lightning_trainer.types import Call, Span


def diagnose(case: Case) -> Finding | None:
    """Find calls whose topmost known span lacks its parent; this blocks only if no call is by the policy's agents."""
    lost = {key_of(span): span for span in case.lost}
    orphans = [
        (call, top)
        for call in case.calls
        if (call.agent is None or call.attempt_id is None) and (top := _top(call, case)) in lost
    ]
    if orphans:
        tops = [lost[key] for key in sorted({top for _, top in orphans})]
        lacks = "agent's name" if any(call.agent is None for call, _ in orphans) else "attempt"
        return Finding(
            "missing parent",
            f"{counted(len(orphans), 'call')} lie below {_parents(tops)}, which never arrived, and nothing else says "
            f"their {lacks}; deliver the spans of every process of the agent, or name the agent with "
            "@lt.agent(...) where it calls",
            blocks=not case.own,
        )
    others = [span for span in case.lost if span.scope != semconv.GATEWAY_SCOPE]
    if not others:
        return None
    return Finding(
        "missing parent",
        f"{_parents(others)} never arrived; {counted(len(others), 'span')} below "
        "are complete without it, so their agent and attempt are known",
        blocks=False,
    )


def _top(call: Call, case: Case) -> SpanKey:
    """Return the topmost known span above a call; a cycle of spans ends the way up."""
    key, seen = (call.trace_id, call.span_id), set()
    while key not in seen:
        seen.add(key)
        parent = case.by_key[key].parent_span_id
        if parent is None or (call.trace_id, parent) not in case.by_key:
            break
        key = (call.trace_id, parent)
    return key


def _parents(spans: list[Span]) -> str:
    parents = sorted({span.parent_span_id or "" for span in spans})
    return f"span{'s' * (len(parents) != 1)} {listed(parents)}"

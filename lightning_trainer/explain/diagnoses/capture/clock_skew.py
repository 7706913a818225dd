"""Clock skew: a span that starts before its parent, or ends before it starts.

Calls that extend each other's tokens are in the right order whatever the clocks say; only other calls are ordered by
time.
"""

from lightning_trainer.explain.case import Case
from lightning_trainer.explain.finding import Finding, counted, seconds
from lightning_trainer.types import Span

_TOLERANCE_NS = 10_000_000
"""Tracers round to milliseconds; less than 10 ms of skew does not change the order of calls."""


def diagnose(case: Case) -> Finding | None:
    """Find spans that start before their parents or end before they start, and name the worst."""
    skews: list[tuple[int, str]] = []
    for (trace_id, _), span in case.by_key.items():
        if span.end_ns < span.start_ns:
            by = span.start_ns - span.end_ns
            skews.append((by, f"{_named(span)} ends {seconds(by)} before it starts"))
        parent = case.by_key.get((trace_id, span.parent_span_id or ""))
        if parent is not None and span.start_ns < parent.start_ns - _TOLERANCE_NS:
            by = parent.start_ns - span.start_ns
            skews.append((by, f"{_named(span)} starts {seconds(by)} before the span that it lies in, {_named(parent)}"))
    if not skews:
        return None
    _, worst = max(skews)
    more = f" ({counted(len(skews), 'span')} in all)" if len(skews) > 1 else ""
    return Finding(
        "clock skew",
        f"{worst}{more}; calls that extend each other's tokens are in order all the same, others are put in order by "
        "time and may not be: set the clocks of the agent's and the daemon's machines",
        blocks=False,
    )


def _named(span: Span) -> str:
    return f"{span.name!r} ({span.span_id})"

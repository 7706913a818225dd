"""The spans of an attempt as rows of a tree, each with its place in time."""

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_instrumentation import semconv

from lightning_trainer.types import Span, SpanStatus

_MOST = 500
_DEEPEST = 12
"""Levels of indentation; deeper spans share the last."""


@dataclass(frozen=True, slots=True)
class SpanRow:
    """A span as a row of the tree, with its place in the attempt's time."""

    span: Span
    depth: int
    begins: float
    """Share of the attempt's time before the span, in per mille; ``lasts`` is the span's own share."""
    lasts: float
    kind: str
    """rollout, agent, model call, gateway, tool, reward or span."""
    agent: str | None
    tokens: str
    """Tokens in and out, if they are counted."""

    @property
    def failed(self) -> bool:
        """Whether the span ended with an error."""
        return self.span.status is SpanStatus.ERROR

    @property
    def seconds(self) -> float:
        """Return the span's duration in seconds."""
        return (self.span.end_ns - self.span.start_ns) / 1e9


def span_rows(spans: Sequence[Span]) -> tuple[list[SpanRow], int]:
    """Return the first rows, every span after its parent, and how many there are."""
    if not spans:
        return [], 0
    here = {(span.trace_id, span.span_id) for span in spans}
    children: dict[tuple[str, str] | None, list[Span]] = {}
    for span in sorted(spans, key=lambda span: (span.start_ns, span.end_ns, span.span_id)):
        parent = None if span.parent_span_id is None else (span.trace_id, span.parent_span_id)
        children.setdefault(parent if parent in here else None, []).append(span)
    first, last = min(span.start_ns for span in spans), max(span.end_ns for span in spans)
    took = max(1, last - first)
    rows: list[SpanRow] = []
    waiting = [(span, 0) for span in reversed(children.get(None, []))]
    while waiting:
        span, depth = waiting.pop()
        if len(rows) < _MOST:
            rows.append(_row(span, depth, 1000 * (span.start_ns - first) / took, took))
        below = children.get((span.trace_id, span.span_id), [])
        waiting += [(child, min(depth + 1, _DEEPEST)) for child in reversed(below) if child is not span]
    return rows, len(spans)


def _row(span: Span, depth: int, begins: float, took: int) -> SpanRow:
    agent = span.attributes.get(semconv.AGENT_NAME)
    counts = [span.attributes.get(name) for name in (semconv.INPUT_TOKENS, semconv.OUTPUT_TOKENS)]
    told = [f"{count:,}" if isinstance(count, int) else "?" for count in counts]
    return SpanRow(
        span=span,
        depth=depth,
        begins=begins,
        lasts=max(3.0, 1000 * (span.end_ns - span.start_ns) / took),
        kind=_kind(span),
        agent=agent if isinstance(agent, str) else None,
        tokens=" → ".join(told) if any(count is not None for count in counts) else "",
    )


def _kind(span: Span) -> str:
    if span.attributes.get(semconv.ROLLOUT_ROOT) is True:
        return "rollout"
    if span.scope == semconv.GATEWAY_SCOPE:
        return "gateway"
    operation = span.attributes.get(semconv.OPERATION)
    if span.name.startswith("evaluate "):
        return "reward"
    return {
        semconv.INVOKE_AGENT: "agent",
        semconv.EXECUTE_TOOL: "tool",
        semconv.CHAT: "model call",
        semconv.TEXT_COMPLETION: "model call",
        semconv.GENERATE_CONTENT: "model call",
    }.get(str(operation), "span")

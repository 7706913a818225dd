"""Streams that ended before their last chunk, answers that the caller abandoned, calls canceled before any answer."""

from lightning_instrumentation import semconv

from lightning_trainer.explain.case import Case
from lightning_trainer.explain.finding import Finding, counted, listed
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.types import Call


def diagnose(case: Case) -> Finding | None:
    """Find calls marked ``incomplete_stream``: with a part of their answer, or canceled before any of it."""
    calls = case.met(Reason.INCOMPLETE_STREAM)
    if not calls:
        return None
    tokens = sum(len(call.response_ids) for call in calls)
    said = sorted({sentence for call in calls if (sentence := _said(call, case))})
    which = f"call{'s' * (len(calls) != 1)} {listed(case.number(call) for call in calls)}"
    if not tokens:
        were = "were" if len(calls) != 1 else "was"
        why = f" ({listed(said, 2)})" if said else ""
        return Finding(
            "cancelled call",
            f"{which} {were} cancelled by the caller before anything was answered{why}; look for a time-out of the "
            "client or the agent that is shorter than an answer takes",
            whole=len(calls) == len(case.own),
        )
    return Finding(
        "interrupted stream",
        f"{which} ended early, after {counted(tokens, 'sampled token')}{f' ({listed(said, 2)})' if said else ''}; the "
        "agent did not act on the whole response, so the reward is not about it: read streams to their end",
        whole=len(calls) == len(case.own),
    )


def _said(call: Call, case: Case) -> str:
    """Return what the record of the call, or the span that marks it as abandoned, says about its end."""
    for span in case.spans:
        gave_up = span.attributes.get(semconv.CALL_ABANDONED) is True and span.parent_span_id == call.span_id
        if span.trace_id == call.trace_id and (gave_up or span.span_id == call.span_id) and span.status_message:
            return span.status_message
    return ""

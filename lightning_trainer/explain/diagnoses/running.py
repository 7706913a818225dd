"""The attempt is still running: its root span, which marks the end, has not arrived."""

from lightning_trainer.explain.case import Case
from lightning_trainer.explain.finding import Finding, counted, listed, seconds
from lightning_trainer.types import AttemptState


def diagnose(case: Case) -> Finding | None:
    """Find an attempt whose root span has not arrived, and say how long ago its newest span did."""
    if case.attempt is None or case.attempt.state is not AttemptState.RUNNING:
        return None
    newest_ns = max((span.end_ns for span in case.spans), default=case.attempt.started_ns)
    ago = seconds(max(0, case.now_ns - newest_ns))  # the clock of the span's machine may be ahead of ours
    parents = sorted({span.parent_span_id for span in case.lost if span.parent_span_id is not None})
    named = f"; spans below it name {listed(parents, 2)}, which is not here" if parents else ""
    if case.from_files:
        return Finding(
            "still running",
            f"attempt {case.attempt_id} has not ended, for its root span is not among the "
            f"{counted(len(case.spans), 'span')} that were read of it{named}; record it to its end, with the spans of "
            "the process that began it",
        )
    return Finding(
        "still running",
        f"attempt {case.attempt_id} has not ended, for its root span has not arrived "
        f"({counted(len(case.spans), 'span')} have, the newest {ago} ago{named}); if its "
        "process is gone, what it could not deliver is in its spool, and comes when it or the daemon starts again",
    )

"""Retention has deleted the attempt's spans, or the batch of the step that took it."""

from datetime import UTC, datetime

from lightning_trainer.explain.case import Case
from lightning_trainer.explain.finding import Finding


def diagnose(case: Case) -> Finding | None:
    """Say when retention deleted the spans, and whether a step had already taken the attempt.

    A step's batch may be deleted while its spans are kept, because another policy still waits for them.
    """
    if case.expired_ns is None and case.judged.batch_deleted and case.judged.step is not None:
        return Finding(
            "deleted",
            f"the batch of step {case.judged.step.step} was deleted by [store] retention; what became of each call is "
            "what is made of it again now, credits and advantages are gone, and the ledger of the step stays",
        )
    if case.expired_ns is None:
        return None
    at = f"{datetime.fromtimestamp(case.expired_ns / 1e9, UTC):%Y-%m-%d %H:%M} UTC"
    step = case.judged.step
    left = "no step had taken it" if step is None else f"the ledger of step {step.step} stays"
    return Finding(
        "deleted",
        f"the spans of attempt {case.attempt_id} were deleted at {at} by [store] retention; {left}",
    )

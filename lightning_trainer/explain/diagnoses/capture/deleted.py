"""Its spans are gone: retention has deleted them."""

from datetime import UTC, datetime

from lightning_trainer.explain.case import Case
from lightning_trainer.explain.finding import Finding


def diagnose(case: Case) -> Finding | None:
    """Say when retention deleted the spans, and whether a step had already taken the attempt."""
    if case.expired_ns is None:
        return None
    at = f"{datetime.fromtimestamp(case.expired_ns / 1e9, UTC):%Y-%m-%d %H:%M} UTC"
    step = case.judged.step
    left = "no step had taken it" if step is None else f"the ledger of step {step.step} stays"
    return Finding(
        "deleted",
        f"the spans of attempt {case.attempt_id} were deleted at {at} by [store] retention; {left}",
    )

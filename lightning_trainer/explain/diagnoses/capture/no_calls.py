"""The attempt has no recorded model call."""

from lightning_trainer.explain.case import Case
from lightning_trainer.explain.finding import Finding, counted
from lightning_trainer.ingest.dialects.registry import dialect_of


def diagnose(case: Case) -> Finding | None:
    """Find attempts without calls whose spans were not deleted, and count the requests that a model never answered."""
    if case.calls or case.expired_ns is not None:
        return None
    failed = sum(dialect_of(span).failed(span) for span in case.spans)
    if failed:
        return Finding("no calls", f"its {counted(failed, 'request')} got no answer from a model")
    return Finding(
        "no calls",
        f"it has {counted(len(case.spans), 'span')} and no model call; see that its program runs under "
        "`lightning-trainer run`, or that its client calls the gateway, and whether a cache of answers made the call "
        "unnecessary",
    )

"""Calls with more records than the client's and the gateway's: each is counted once."""

from lightning_trainer.explain.case import Case
from lightning_trainer.explain.finding import Finding, counted, listed
from lightning_trainer.ingest.calls import JoinedCall
from lightning_trainer.ingest.dialects import lightning
from lightning_trainer.types import Outcome


def diagnose(case: Case) -> Finding | None:
    """Find calls with several client records, and calls that the ledger marks as deduplicated."""
    joined = [call for call in case.joined.values() if _recorded_twice(call)]
    repeats = [call for call in case.own if case.call_outcomes[call.call_id].outcome is Outcome.DEDUPLICATED]
    if not joined and not repeats:
        return None
    calls = len(joined) + len(repeats)
    records = sum(len(call.records) for call in joined) + len(repeats)
    by = sorted({record.span.scope or record.dialect for call in joined for record in call.records})
    return Finding(
        "duplicate spans",
        f"{counted(calls, 'call')} {'was' if calls == 1 else 'were'} recorded {counted(records, 'time')}"
        f"{f' (by {listed(by)})' if by else ''}; records of one response that state nothing different are one "
        "call, and the most faithful counts",
        blocks=False,
    )


def _recorded_twice(call: JoinedCall) -> bool:
    gateway = sum(lightning.is_gateway(record.span) for record in call.records)
    return len(call.records) - gateway > 1

"""Calls whose sampling distribution is unknown."""

from collections import Counter

from lightning_trainer.explain.case import Case
from lightning_trainer.explain.finding import Finding, counted
from lightning_trainer.samples.transitions.reasons import Reason


def diagnose(case: Case) -> Finding | None:
    """Find calls whose sampling distribution is unknown, and give the most common cause."""
    calls = case.met(Reason.SAMPLING_UNKNOWN)
    if not calls:
        return None
    (why, _), *others = Counter(call.sampling_unknown for call in calls).most_common()
    more = f"; {counted(len(others), 'other cause')} besides" if others else ""
    return Finding(
        "sampling unknown",
        f"{counted(len(calls), 'call')}: it is not known what the tokens were drawn from: {why}{more}. The engine's "
        "log-probabilities are of that distribution, so the trainer has nothing to compare with them; leave the "
        "parameter out, or let the call go through the gateway (docs/sampling.md)",
        whole=len(calls) == len(case.own),
    )

"""The ledger's reasons that have no diagnosis of their own, in the ledger's words."""

from collections import Counter

from lightning_trainer.explain.case import Case
from lightning_trainer.explain.finding import Finding, counted
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.types import Outcome

_DIAGNOSED = frozenset(
    {
        Reason.FIDELITY_TOO_LOW,
        Reason.NO_POLICY_VERSION,
        Reason.INCOMPLETE_STREAM,
        Reason.SAMPLING_UNKNOWN,
        Reason.OVER_LENGTH,
        Reason.NO_REWARD,
        Reason.EVALUATION,
        Reason.BASELINE,
        Reason.RECORDED,
        Reason.RETRIED,
        Reason.SHADOW,
        Reason.TAKEN_OUT,
        Reason.ATTEMPT_RUNNING,
        Reason.NO_BASELINE,
        Reason.GROUP_TOO_SMALL,
        Reason.GROUP_MIXED_TASKS,
        Reason.GROUP_MIXED_AGENTS,
        Reason.NO_PEERS,
        Reason.ZERO_VARIANCE_GROUP,
    }
)


def diagnose(case: Case) -> Finding | None:
    """Report the most common ledger reason that no other diagnosis covers, with the ledger's own explanation."""
    call_outcomes = (case.call_outcomes[call.call_id] for call in case.own)
    met = Counter(
        call_outcome
        for call_outcome in call_outcomes
        if call_outcome.outcome in (Outcome.DROPPED, Outcome.MASKED) and call_outcome.reason not in _DIAGNOSED
    )
    if not met:
        return None
    (call_outcome, calls), *_ = met.most_common(1)
    return Finding(
        call_outcome.reason.replace("_", " "),
        f"{counted(calls, 'call')}: {call_outcome.explanation}",
        whole=calls == len(case.own),
    )

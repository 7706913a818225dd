"""The outcome of each call: as recorded or, if nothing was recorded, as training would decide now.

A step's batch and ledger are on disk. Which call has which outcome is recomputed from the stored spans by the same pure
function; if that contradicts the batch (a reward came late, the configuration changed), the batch is right. What only
the daemon knew then (which versions were stale, say) is in no span: of that the step's ledger tells.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from lightning_trainer.samples.batches import Build
from lightning_trainer.samples.transitions.ledger import NO_AGENT
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.store.records import StepRecord
from lightning_trainer.types import Call, LedgerRow, Outcome, TrainingBatch

CHANGED_SINCE = "changed_since"
JOINED = "joined"
_OF_THE_STEP = frozenset(
    {
        Reason.STALE,
        Reason.NOT_IN_VOCABULARY,
        Reason.NON_TEXT,
        Reason.MEDIA_MISSING,
        Reason.PLACEHOLDER,
        Reason.LOW_VARIANCE_GROUP,
    }
)
"""Reasons that depend on what only the daemon knew then: its versions, its model, the kept images, earlier steps."""


@dataclass(frozen=True, slots=True)
class ExplainedOutcome:
    """A call's outcome with its reason."""

    outcome: Outcome
    reason: str
    """As in the ledger, or one of the two above, which only exist in hindsight."""
    explanation: str


def outcomes_of(
    calls: Iterable[Call],
    build: Build,
    step: StepRecord | None,
    batch: TrainingBatch | None,
    ledger: Iterable[LedgerRow] = (),
    *,
    batch_deleted: bool = False,
) -> dict[str, ExplainedOutcome]:
    """Return the outcome of each call by id or, if no step has consumed its attempt, its outcome as of now.

    Args:
        build: made from what is stored now.
        step: the one that consumed the calls' attempt.
        batch: that step's, as recorded; without a step, the one in ``build``, or None while the attempt waits for one.
        ledger: that step's, as recorded.
        batch_deleted: the step had a batch that is no longer stored, so what it held is what ``build`` makes again.
    """
    samples = batch.samples if batch is not None else ()
    trained = {segment.transition_id for sample in samples for segment in sample.segments}
    then = _only_then(ledger, build.ledger)
    without = None if step is None or batch_deleted else step.step
    return {call.call_id: _call_outcome(call, trained, build, without, then) for call in calls}


def _call_outcome(
    call: Call, trained: Set[str], build: Build, without: int | None, then: Mapping[tuple, Set[str]]
) -> ExplainedOutcome:
    if call.call_id in trained:
        return _known(Outcome.TRAINED, Reason.SAMPLED)
    call_outcome = build.call_outcomes.get(call.call_id)
    if call_outcome is None:
        return ExplainedOutcome(
            Outcome.DEDUPLICATED, JOINED, "Among all spans of its group it is a record of another call."
        )
    if call_outcome[0] is not Outcome.TRAINED:
        return _known(*call_outcome)
    known = then.get((call.agent or NO_AGENT, call.policy, call.policy_version), frozenset())
    if len(known) == 1 and known <= _OF_THE_STEP:
        reason = Reason(next(iter(known)))
        return _known(Outcome.MASKED if reason is Reason.LOW_VARIANCE_GROUP else Outcome.DROPPED, reason)
    if without is not None:
        return ExplainedOutcome(
            Outcome.DROPPED,
            CHANGED_SINCE,
            f"Step {without} was built without the call. With what is stored now it would be trained: a reward or "
            "spans came later, or the configuration has changed since.",
        )
    return _known(*call_outcome)


def _only_then(recorded: Iterable[LedgerRow], now: Iterable[LedgerRow]) -> dict[tuple, set[str]]:
    """Return by agent, policy and version the reasons that a step's ledger gives for more calls than are found now."""
    calls: Counter[tuple] = Counter()
    for row in recorded:
        calls[row.agent, row.policy, row.policy_version, row.reason] += row.calls
    for row in now:
        calls[row.agent, row.policy, row.policy_version, row.reason] -= row.calls
    found: dict[tuple, set[str]] = {}
    for (*whose, reason), more in calls.items():
        if more > 0 and reason != Reason.SAMPLED:
            found.setdefault(tuple(whose), set()).add(reason)
    return found


def _known(outcome: Outcome, reason: Reason) -> ExplainedOutcome:
    return ExplainedOutcome(outcome, reason.value, reason.explanation)

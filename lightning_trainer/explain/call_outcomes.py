"""The outcome of each call: as recorded or, if nothing was recorded, as training would decide now.

A step's batch and ledger are on disk. Which call has which outcome is recomputed from the stored spans by the same pure
function; if that contradicts the batch (a reward came late, the configuration changed), the batch is right.
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass

from lightning_trainer.samples.batches import Build
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.store.records import StepRecord
from lightning_trainer.types import Call, Outcome, TrainingBatch

CHANGED_SINCE = "changed_since"
JOINED = "joined"


@dataclass(frozen=True, slots=True)
class ExplainedOutcome:
    """A call's outcome with its reason."""

    outcome: Outcome
    reason: str
    """As in the ledger, or one of the two above, which only exist in hindsight."""
    explanation: str


def outcomes_of(
    calls: Iterable[Call], build: Build, step: StepRecord | None, batch: TrainingBatch | None
) -> dict[str, ExplainedOutcome]:
    """Return the outcome of each call by id or, if no step has consumed its attempt, its outcome as of now.

    Args:
        build: made from what is stored now.
        step: the one that consumed the calls' attempt.
        batch: that step's, as recorded; without a step, the one in ``build``, or None while the attempt waits for one.
    """
    samples = batch.samples if batch is not None else ()
    trained = {segment.transition_id for sample in samples for segment in sample.segments}
    return {call.call_id: _call_outcome(call.call_id, trained, build, step) for call in calls}


def _call_outcome(call_id: str, trained: Set[str], build: Build, step: StepRecord | None) -> ExplainedOutcome:
    if call_id in trained:
        return _known(Outcome.TRAINED, Reason.SAMPLED)
    call_outcome = build.call_outcomes.get(call_id)
    if call_outcome is None:
        return ExplainedOutcome(
            Outcome.DEDUPLICATED, JOINED, "Among all spans of its group it is a record of another call."
        )
    if step is not None and call_outcome[0] is Outcome.TRAINED:
        return ExplainedOutcome(
            Outcome.DROPPED,
            CHANGED_SINCE,
            f"Step {step.step} was built without the call. With what is stored now it would be trained: a reward or "
            "spans came later, or the configuration has changed since.",
        )
    return _known(*call_outcome)


def _known(outcome: Outcome, reason: Reason) -> ExplainedOutcome:
    return ExplainedOutcome(outcome, reason.value, reason.explanation)

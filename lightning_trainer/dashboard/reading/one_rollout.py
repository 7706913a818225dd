"""Everything that is known about one rollout, from one snapshot: above all, why it was trained or not."""

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_instrumentation import semconv

from lightning_trainer.config import PolicyConfig
from lightning_trainer.errors import LightningError
from lightning_trainer.explain.explainer import Explainer
from lightning_trainer.explain.explanation import Explanation
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.tables import attempts as attempt_table
from lightning_trainer.store.tables import rollouts as rollout_queries
from lightning_trainer.store.tables import spans as span_table
from lightning_trainer.types import Attempt, Span


@dataclass(frozen=True, slots=True)
class Note:
    """A person's note on a rollout, and when it was made."""

    text: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class OneRollout:
    """A rollout with everything that the store and the explanation know about it."""

    rollout_id: str
    policy: PolicyConfig
    attempts: Sequence[Attempt]
    spans: Sequence[Span]
    explanation: Explanation | None
    """None if it cannot be explained with this configuration; ``why_not`` says why."""
    why_not: str | None
    notes: Sequence[Note]


def read_rollout(connection: Connection, rollout_id: str, explainer: Explainer) -> OneRollout | None:
    """Return a rollout; None if the store has nothing of it.

    Args:
        explainer: of the same snapshot.
    """
    attempts = attempt_table.select(connection, rollout_id=rollout_id)
    if attempts:
        spans = span_table.select_of_attempts(connection, [one.attempt_id for one in attempts])
    elif not (spans := rollout_queries.select_spans_without_attempt(connection, rollout_id)):
        return None
    explanation, why_not = None, None
    try:
        explanation = explainer.explain(rollout_id)
    except LightningError as error:
        why_not = str(error)
    notes = [
        Note(text, span.start_ns)
        for span in spans
        if isinstance(text := span.attributes.get(semconv.NOTE), str) and text
    ]
    policy = explainer.policy_of(rollout_id)
    return OneRollout(rollout_id, policy, attempts, spans, explanation, why_not, notes)

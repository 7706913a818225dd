"""Everything that is known about one rollout, from one snapshot: above all, why it was trained or not."""

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_instrumentation import semconv

from lightning_trainer.config import Config, PolicyConfig, any_agent
from lightning_trainer.errors import LightningError
from lightning_trainer.explain.explanation import Explanation, explain
from lightning_trainer.explain.gathering import Gathering
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


def read_rollout(
    connection: Connection,
    rollout_id: str,
    config: Config,
    gatherings: dict[str, Gathering] | None = None,
) -> OneRollout | None:
    """Return a rollout; None if the store has nothing of it.

    Args:
        gatherings: by policy; shared by the rollouts of one snapshot, so that each step's input is judged only once.
    """
    attempts = attempt_table.select(connection, rollout_id=rollout_id)
    if attempts:
        spans = span_table.select_of_attempts(connection, [one.attempt_id for one in attempts])
    elif not (spans := rollout_queries.select_spans_without_attempt(connection, rollout_id)):
        return None
    policy = _policy_of(connection, attempts, spans, config.policy)
    others = [one.name for one in config.policy if one is not policy]
    explanation, why_not = None, None
    try:
        gathering = None if gatherings is None else gatherings.get(policy.name)
        gathering = gathering or Gathering(connection, policy, others, no_policy=not config.policy, judges=config.judge)
        if gatherings is not None:
            gatherings[policy.name] = gathering
        explanation = explain(gathering.cases(rollout_id))
    except LightningError as error:
        why_not = str(error)
    notes = [
        Note(text, span.start_ns)
        for span in spans
        if isinstance(text := span.attributes.get(semconv.NOTE), str) and text
    ]
    return OneRollout(rollout_id, policy, attempts, spans, explanation, why_not, notes)


def _policy_of(
    connection: Connection, attempts: Sequence[Attempt], spans: Sequence[Span], policies: Sequence[PolicyConfig]
) -> PolicyConfig:
    """Return the policy whose step took it, else one that claims an agent of it, else the first."""
    if not policies:
        return any_agent()
    by_name = {policy.name: policy for policy in policies}
    for attempt in attempts:
        taken = rollout_queries.select_assignment(connection, attempt.attempt_id, policies[0].name)
        if taken is not None and taken[0] in by_name:
            return by_name[taken[0]]
    agents = [name for span in spans if isinstance(name := span.attributes.get(semconv.AGENT_NAME), str)]
    claiming = (policy for agent in agents for policy in policies if policy.claims(agent))
    return next(claiming, policies[0])

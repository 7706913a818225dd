"""Finds the rollouts that a question means: those of a name, or the newest ones of a policy or an agent."""

from collections.abc import Sequence
from itertools import islice

from lightning_instrumentation import semconv

from lightning_trainer.config import PolicyConfig, matches
from lightning_trainer.errors import StoreError
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.tables import attempts as attempt_table
from lightning_trainer.store.tables import spans as span_table
from lightning_trainer.store.tables.rollouts import RolloutRow, has_part, nearest_names, select_named, select_recent
from lightning_trainer.types import Call

_SEARCHED = 500
"""Number of newest rollouts that are searched for those of one policy or agent."""


def named(
    connection: Connection, place: str, rollout: str | None, policy: PolicyConfig | None, agent: str | None
) -> list[str]:
    """Return the rollouts of that name; without a name the newest one, of the policy and the agent if given.

    Args:
        place: name of what is read, for sentences.

    Raises:
        StoreError: there is no such rollout.
    """
    recent = [] if rollout else [row.rollout_id for row in newest(connection, 1, policy, agent)]
    if found := select_named(connection, rollout) if rollout else recent:
        if spoken := [one for one in found if agent is None or _speaks(connection, one, agent)]:
            return spoken
        raise StoreError(f"agent {agent!r} made no call in rollout {rollout!r}; see `lightning-trainer agents`")
    if not rollout:
        raise StoreError(no_rollout(connection, place, policy, agent))
    nearest = nearest_names(connection, rollout)
    hint = f"the nearest are {', '.join(nearest)}" if nearest else "it has none; see `lightning-trainer agents`"
    raise StoreError(f"there is no rollout, attempt or task {rollout!r} in {place}: {hint}")


def no_rollout(connection: Connection, place: str, policy: PolicyConfig | None, agent: str | None) -> str:
    """Return a sentence that says why there is no rollout."""
    if agent is not None and select_recent(connection, 1):
        return (
            f"agent {agent!r} made no call in the newest {_SEARCHED} rollouts in {place}; see "
            "`lightning-trainer agents`"
        )
    if policy is not None and select_recent(connection, 1):
        return (
            f"there is no rollout of policy {policy.name!r} among the newest {_SEARCHED} in {place}: it "
            "answered no call of them, and they have no agent that it claims; see `lightning-trainer agents`"
        )
    return (
        f"there is no rollout in {place}: none of its spans names one, with {semconv.ROLLOUT_ID} and "
        f"{semconv.ATTEMPT_ID}"
    )


def newest(connection: Connection, count: int, policy: PolicyConfig | None, agent: str | None) -> list[RolloutRow]:
    """Return the newest rollouts, of the policy and the agent (a name or a pattern) if given."""
    if policy is None and agent is None:
        return select_recent(connection, count)
    rows = (
        row
        for row in select_recent(connection, _SEARCHED)
        if (policy is None or _concerns(connection, row.rollout_id, policy))
        and (agent is None or _speaks(connection, row.rollout_id, agent))
    )
    return list(islice(rows, count))


def _speaks(connection: Connection, rollout_id: str, agent: str) -> bool:
    return any(call.agent is not None and matches(call.agent, [agent]) for call in _calls(connection, rollout_id))


def _calls(connection: Connection, rollout_id: str) -> Sequence[Call]:
    attempts = [one.attempt_id for one in attempt_table.select(connection, rollout_id=rollout_id)]
    return read_spans(span_table.select_of_attempts(connection, attempts)).calls


def _concerns(connection: Connection, rollout_id: str, policy: PolicyConfig) -> bool:
    if has_part(connection, rollout_id, policy.name):
        return True
    # The policy answered none of the calls, but may claim some that no policy answered: those can be explained for it.
    return any(call.policy is None and policy.claims(call.agent) for call in _calls(connection, rollout_id))

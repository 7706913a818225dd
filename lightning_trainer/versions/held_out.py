"""How good a version is on held-out tasks: the mean reward of the evaluation attempts whose calls it sampled.

An attempt during which the version changed says nothing about either and is left out, as is one without a reward.
"""

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from lightning_trainer.config import PolicyConfig
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.rewards.table import read_rewards
from lightning_trainer.store.tables.attempts import select_ended
from lightning_trainer.store.tables.spans import select_of_attempts
from lightning_trainer.types import Attempt, RolloutMode, Span


@dataclass(frozen=True, slots=True)
class HeldOutScore:
    mean: float
    attempts: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """One evaluation attempt."""

    version: int
    reward: float


def verdicts(attempts: Sequence[Attempt], spans: Sequence[Span], policy: PolicyConfig) -> dict[str, Verdict]:
    """Return by attempt id what each attempt says of one version; absent where it says nothing (yet).

    Args:
        attempts: evaluations that have ended.
        spans: all of theirs.
    """
    reading = read_spans(spans)
    known = {attempt.attempt_id: attempt for attempt in attempts}
    rewards = read_rewards(reading.evaluations, reading.calls, known, policy.reward_weights)
    versions: dict[str, set[int | None]] = {}
    for call in reading.calls:
        if call.attempt_id in known and call.policy == policy.name:
            versions.setdefault(call.attempt_id, set()).add(call.policy_version)
    found: dict[str, Verdict] = {}
    for attempt_id, sampled_by in versions.items():
        reward = rewards.of_attempts.get(attempt_id)
        version = next(iter(sampled_by)) if len(sampled_by) == 1 else None
        if reward is not None and version is not None:
            found[attempt_id] = Verdict(version, reward)
    return found


def select_verdicts(
    connection: sqlite3.Connection, policy: PolicyConfig, *, known: Collection[str] = ()
) -> dict[str, Verdict]:
    """Read the verdicts of all evaluation attempts in a store but those that are known."""
    ended = select_ended(connection, mode=RolloutMode.EVALUATE, policy=None)
    attempts = [attempt for attempt in ended if attempt.attempt_id not in known]
    if not attempts:
        return {}
    return verdicts(attempts, select_of_attempts(connection, [attempt.attempt_id for attempt in attempts]), policy)


def held_out_scores(found: Mapping[str, Verdict]) -> dict[int, HeldOutScore]:
    """Return by version the mean over its attempts."""
    rewards: dict[int, list[float]] = {}
    for verdict in found.values():
        rewards.setdefault(verdict.version, []).append(verdict.reward)
    return {version: HeldOutScore(fmean(values), len(values)) for version, values in rewards.items()}

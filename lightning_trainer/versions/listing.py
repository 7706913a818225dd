"""A policy's versions as ``lightning-trainer versions`` shows them, read from one snapshot of the store."""

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import Any, TypedDict

from lightning_trainer.config import PolicyConfig
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.tables import canaries
from lightning_trainer.store.tables import steps as step_table
from lightning_trainer.store.tables import versions as version_table
from lightning_trainer.store.tables.canaries import CanaryRecord
from lightning_trainer.types import PolicyVersion, VersionState
from lightning_trainer.versions.held_out import HeldOutScore, held_out_scores, select_scores, select_verdicts
from lightning_trainer.versions.lineage import Lineage


def other_policies(connection: Connection, named: Collection[str]) -> str | None:
    """Say which policies have versions but are not named: after renaming a policy, its versions seem to be lost."""
    counts = version_table.count_of_policies(connection)
    others = [
        f"policy {policy!r} ({count:,} version{'s' * (count != 1)})"
        for policy, count in counts.items()
        if policy not in named
    ]
    return f"the store also has {', '.join(others)}, which the configuration does not name" if others else None


class Whereabouts(StrEnum):
    """Where a version is."""

    SERVING = "serving"
    """Answers the policy's calls while the daemon runs."""
    STORED = "stored"
    """Its weights are kept: requests to ``POLICY@vN`` are answered."""
    GONE = "gone"
    """Its weights are not kept; a rollback rebuilds them from a checkpoint and the recorded steps."""
    CANARY = "canary"
    """It answers a share of live rollouts, and training waits for the decision."""
    REFUSED = "refused"
    """Trainer and engine did not agree on it, or the guard or its canary held it back; it answers none of the policy's
    calls."""


class CanaryRow(TypedDict):
    """The canary of a version: a candidate that answered a share of live rollouts."""

    state: str
    """``going_on``, ``promoted``, ``refused``, ``stopped`` or ``interrupted``."""
    live: int
    """The version that it was compared with."""
    began_ns: int
    ended_ns: int | None
    evidence: Mapping[str, Any]
    """For the candidate and the live version: the number of ended ``rollouts``, the number of those with a reward
    (``rewards``), and their ``means``; the bounds of both means; the canary's ``range``; what went wrong (``harms``),
    as shares of rollouts; and the number of calls that the live version answered and the candidate did not
    (``unanswered``). With ``shadow`` also ``incomplete`` rollouts, and calls that the candidate skipped (``dropped``)
    or did not answer (``failed``)."""
    reason: str | None


class VersionRow(TypedDict):
    """One version in the list."""

    version: int
    parent: int | None
    """The version that it was trained from."""
    state: str
    created_ns: int
    reward: float | None
    """Its reward in training: the mean over the rollouts of the step that continues from it. None until there is one.
    """
    held_out: float | None
    """Mean reward of its evaluation attempts."""
    held_out_attempts: int
    held_out_error: float | None
    """The standard error of ``held_out``, as in ``HeldOutScore``."""
    reason: str | None
    """Why it was refused."""
    canary: CanaryRow | None
    """The result of its canary; None if it had none."""


def list_versions(
    connection: Connection,
    policy: PolicyConfig,
    stored: Collection[int],
    *,
    before: int | None = None,
    newest: int | None = None,
    fresh: bool = True,
) -> list[VersionRow]:
    """Return the policy's versions in ascending order.

    Args:
        stored: versions whose weights are kept.
        before: only versions before this one.
        newest: of these, only this many of the newest.
        fresh: also read evaluations that were not read before, however many there are.
    """
    versions = version_table.select(connection, policy.name, before=before, newest=newest)
    if not versions:
        return []
    first, last = versions[0].version, versions[-1].version
    lineage, children = _family(connection, policy.name, first, last)
    metrics = step_table.select_metrics(connection, policy.name, children)
    # Of several steps from one version (after a rollback to it), the last one counts.
    earned = {lineage.parent(step): values.get("reward/mean") for step, values in metrics.items()}
    scores = (
        held_out_scores(select_verdicts(connection, policy))
        if fresh
        else select_scores(connection, policy.name, first, last)
    )
    tried = canaries.select(connection, policy.name, first, last)
    rows: list[VersionRow] = []
    for version in versions:
        score = scores.get(version.version)
        canary = tried.get(version.version)
        rows.append(
            VersionRow(
                version=version.version,
                parent=lineage.parent(version.version),
                state=_whereabouts(version, stored, canary),
                created_ns=version.created_ns,
                reward=earned.get(version.version),
                held_out=None if score is None else score.mean,
                held_out_attempts=0 if score is None else score.attempts,
                held_out_error=None if score is None else score.error,
                reason=version.reason,
                canary=None if canary is None else _canary_row(canary),
            )
        )
    return rows


def best_version(rows: Iterable[VersionRow]) -> int | None:
    """Return the version with the best held-out score (``HeldOutScore.rank``), the newest of equal ones; None if there
    is no score."""
    ranks = {
        (HeldOutScore(row["held_out"], row["held_out_attempts"], row["held_out_error"]).rank, row["version"])
        for row in rows
        if row["held_out"] is not None
    }
    return max(ranks)[1] if ranks else None


def _family(connection: Connection, policy: str, first: int, last: int) -> tuple[Lineage, list[int]]:
    """Return the lineage of the versions from ``first`` to ``last`` and of their children, and the steps that may be
    these children: those in the range and the one after it, and those that follow a rollback into it."""
    rollbacks = version_table.select_rollbacks(connection, policy)
    before, _ = step_table.trained_beside(connection, policy, first)
    _, after = step_table.trained_beside(connection, policy, last)
    steps = set(step_table.trained_between(connection, policy, before, after or last))
    for rollback in rollbacks:
        if first <= rollback.version <= last:
            # The next recorded step continues from the version if it is the first step after the rollback, which the
            # step before it shows.
            _, child = step_table.trained_beside(connection, policy, rollback.after_step)
            if child is not None:
                steps |= {child, step_table.trained_beside(connection, policy, child)[0]}
    found = sorted(steps - {0})
    return Lineage(found, rollbacks), found


def _canary_row(record: CanaryRecord) -> CanaryRow:
    return CanaryRow(
        state=record.state,
        live=record.live,
        began_ns=record.began_ns,
        ended_ns=record.ended_ns,
        evidence=record.evidence,
        reason=record.reason,
    )


def _whereabouts(version: PolicyVersion, stored: Collection[int], canary: CanaryRecord | None) -> Whereabouts:
    if canary is not None and canary.ended_ns is None and version.state is VersionState.TRAINED:
        return Whereabouts.CANARY
    match version.state:
        case VersionState.LIVE:
            return Whereabouts.SERVING
        case VersionState.REFUSED:
            return Whereabouts.REFUSED
        case _:
            return Whereabouts.STORED if version.version in stored else Whereabouts.GONE

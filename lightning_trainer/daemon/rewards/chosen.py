"""Choosing the recorded attempts that are judged by hand, and those that they are compared with."""

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from lightning_trainer.config import PolicyConfig, matches
from lightning_trainer.errors import ConfigError, NothingToJudgeError
from lightning_trainer.explain.finding import counted
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.samples.credit.group_collector import regroup
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.retention.sweep import expired_among
from lightning_trainer.store.tables import attempts as attempt_table
from lightning_trainer.store.tables import spans as span_table
from lightning_trainer.store.tables.rollouts import nearest_names, select_named
from lightning_trainer.types import Attempt, AttemptState, RolloutMode

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LAST_NS = 2**63 - 1
"""The latest time that a database can be asked about."""
_ONLY_BY_NAME = (RolloutMode.DROPPED, RolloutMode.RETRIED, RolloutMode.SHADOW)
"""Modes whose rewards train nothing: a judge, which costs, sees such an attempt only if it is named itself."""
_READ_AT_ONCE = 100
"""Attempts whose spans are in memory at a time, to see their first prompts."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The attempts that are judged, group by group."""

    groups: list[list[Attempt]]
    left_out: tuple[str, ...]
    """Phrases that say how many are not judged, and why."""


def choose(
    connection: Connection, names: Sequence[str], since: str | None, *, whole: bool, policy: PolicyConfig | None
) -> Chosen:
    """Return the ended attempts that are asked for; for a judge of groups, along with the others of their groups.

    Args:
        names: rollouts, attempts, tasks or groups; none: all since ``since``.
        whole: the judge compares the attempts of a group.
        policy: the policy that the judge rewards, which says what a group is; None: groups are as they were recorded.

    Raises:
        NothingToJudgeError: there is no such attempt.
        ConfigError: ``since`` is not a time, or neither names nor a time are given.
    """
    since_ns = None if since is None else _since_ns(since)
    if not names and since_ns is None:
        raise ConfigError("name rollouts, tasks or groups to judge, or say --since 2h")
    if names:
        found = [one for name in names for one in _named(connection, name)]
    else:
        found = attempt_table.select(connection, ended_since_ns=since_ns)
    meant = {
        one.attempt_id: one
        for one in found
        if one.state is not AttemptState.RUNNING and (since_ns is None or (one.ended_ns or 0) >= since_ns)
    }
    kept = {key: one for key, one in meant.items() if _is_asked_for(one, names)}
    gone = expired_among(connection, kept)
    said = []
    if gone:
        said.append(f"{counted(len(gone), 'attempt')} left out, of which the spans were deleted")
    if by_name := len(meant) - len(kept):
        said.append(f"{by_name} left out that were dropped, retried or a shadow's: name each to have it judged")
    judged = [one for key, one in kept.items() if key not in gone]
    if not judged:
        asked = f"named {', '.join(names)}" if names else f"since {since}"
        raise NothingToJudgeError(
            "; ".join([f"there is no attempt {asked} that has ended", *said]) + "; see `lightning-trainer explain`"
        )
    groups = _by_group(connection, judged, policy) if whole else _sorted(judged)
    return Chosen(groups, tuple(said))


def _is_asked_for(attempt: Attempt, names: Sequence[str]) -> bool:
    return attempt.mode not in _ONLY_BY_NAME or attempt.attempt_id in names or attempt.rollout_id in names


def _by_group(connection: Connection, judged: Sequence[Attempt], policy: PolicyConfig | None) -> list[list[Attempt]]:
    """Return the groups with all of their members; if grouped by prompt, with those of them that are judged only."""
    if policy is not None and policy.group_by == "prompt":
        return _sorted(_by_prompt(connection, judged, policy))
    by_task = policy is not None and policy.group_by == "task"
    members = {one.attempt_id: one for one in judged}
    for name in dict.fromkeys(one.task_id if by_task else one.group_id for one in judged):
        others = (
            attempt_table.select(connection, task_id=name)
            if by_task
            else attempt_table.select(connection, group_id=name)
        )
        gone = expired_among(connection, [one.attempt_id for one in others])
        for one in others:
            if one.state is not AttemptState.RUNNING and one.mode not in _ONLY_BY_NAME and one.attempt_id not in gone:
                members.setdefault(one.attempt_id, one)
    return _sorted(members.values() if policy is None else regroup([*members.values()], (), policy))


def _by_prompt(connection: Connection, judged: Sequence[Attempt], policy: PolicyConfig) -> list[Attempt]:
    grouped: list[Attempt] = []
    for first in range(0, len(judged), _READ_AT_ONCE):
        some = judged[first : first + _READ_AT_ONCE]
        spans = span_table.select_of_attempts(connection, [one.attempt_id for one in some])
        grouped += regroup(some, read_spans(spans).calls, policy)
    return grouped


def _sorted(attempts: Iterable[Attempt]) -> list[list[Attempt]]:
    by_group: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        by_group.setdefault(attempt.group_id, []).append(attempt)
    return [*by_group.values()]


def _named(connection: Connection, name: str) -> list[Attempt]:
    if of_group := attempt_table.select(connection, group_id=name):
        return of_group
    rollouts = select_named(connection, name)
    if rollouts and rollouts != [name] and (exact := attempt_table.select(connection, attempt_ids=[name])):
        return exact
    is_pattern = any(mark in name for mark in "*?[")
    if (
        not rollouts
        and is_pattern
        and (groups := [one for one in attempt_table.select(connection) if matches(one.group_id, [name])])
    ):
        return groups
    if not rollouts:
        nearest = ", ".join(nearest_names(connection, name)) or "none is recorded"
        raise NothingToJudgeError(f"there is no rollout, attempt, task or group {name!r}: the nearest are {nearest}")
    return [one for rollout in rollouts for one in attempt_table.select(connection, rollout_id=rollout)]


def _since_ns(text: str) -> int:
    try:
        if match := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip()):
            at_ns = time.time_ns() - int(float(match[1]) * _UNITS_S[match[2]] * 1e9)
        else:
            at = datetime.fromisoformat(text)
            at_ns = int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1e9)
    except (ValueError, OverflowError):
        raise ConfigError(f"--since {text!r} is not a time: write 30m, 2h, 7d, or 2026-05-01T12:00") from None
    return max(0, min(at_ns, _LAST_NS))

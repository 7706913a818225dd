"""Credit in each group of a step, and the verdict on it: by itself, and then among the others.

Whatever working on a group raises is that group's alone: it is set aside with a sentence, and the others go on. It
comes from outside (rewards, spans), and an error that left this module would meet the same group for ever.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lightning_trainer.config import PolicyConfig
from lightning_trainer.samples.best_of_n import judge_best
from lightning_trainer.samples.credit.assignment import Assignment, assign, refuse_all
from lightning_trainer.samples.credit.baselines import Baselines
from lightning_trainer.samples.credit.groups import (
    GroupSummary,
    Member,
    judge_group,
    keep_most_uncertain,
    leave_out_below,
)
from lightning_trainer.samples.credit.overlong import OverlongShaping
from lightning_trainer.samples.credit.schemes.registry import credit_scheme
from lightning_trainer.samples.credit.schemes.scheme import CreditScheme
from lightning_trainer.samples.rewards.reward_table import RewardTable
from lightning_trainer.samples.transitions.length_limit import Limit
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.types import Attempt, Trajectory

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JudgedGroup:
    """A group with the credits of its transitions and the verdict on it."""

    trajectories: Sequence[Trajectory]
    members: Sequence[Member]
    assignment: Assignment
    summary: GroupSummary


def judge_groups(
    attempts: Mapping[str, Sequence[Attempt]],
    trajectories: Mapping[str, Sequence[Trajectory]],
    agents_by_attempt: Mapping[str, frozenset[str]],
    rewards: RewardTable,
    baselines: Baselines,
    limit: Limit,
    policy: PolicyConfig,
    deviation_floor: float = 0.0,
) -> list[JudgedGroup]:
    """Give credit in each group and judge it, by itself and then among the others.

    Args:
        attempts: those to be trained, by group id.
        trajectories: by group id.
        agents_by_attempt: which of the policy's agents made calls, by attempt id.
        deviation_floor: groups whose rewards deviate less are left out.
    """
    scheme = _shaped(credit_scheme(policy.credit), policy)

    def judged(group_id: str, assignment: Assignment) -> JudgedGroup:
        members = [
            Member(
                attempt=attempt,
                agents=agents_by_attempt.get(attempt.attempt_id, frozenset()),
                reward=rewards.of_attempts.get(attempt.attempt_id),
                row_credits=assignment.row_credits.get(attempt.attempt_id, {}),
            )
            for attempt in attempts[group_id]
        ]
        summary = judge_group(
            group_id,
            members,
            drop_zero_variance=policy.algorithm.drop_zero_variance_groups,
            group_by=policy.group_by,
            needs_baseline=policy.algorithm.needs_baseline,
            baseline=baselines.of_groups.get(group_id),
        )
        summary = judge_best(policy.algorithm, members, summary)
        return JudgedGroup(trajectories.get(group_id, []), members, assignment, summary)

    groups: list[JudgedGroup] = []
    for group_id in sorted(attempts):
        own = trajectories.get(group_id, [])
        if group_id in rewards.incomplete:
            groups.append(judged(group_id, refuse_all(own, Reason.NO_REWARD)))
            continue
        try:
            assignment = assign(own, scheme, limit, gives_rewards=policy.credit.needs_values)
            groups.append(judged(group_id, assignment))
        except Exception as error:
            _log.exception("group %s is set aside", group_id)
            groups.append(_set_aside(judged(group_id, refuse_all(own, Reason.QUARANTINED)), error))
    summaries = leave_out_below([group.summary for group in groups], deviation_floor)
    if policy.algorithm.keep_most_uncertain is not None:
        summaries = keep_most_uncertain(summaries, policy.algorithm.keep_most_uncertain)
    return [replace(group, summary=summary) for group, summary in zip(groups, summaries, strict=True)]


def quarantined(group_id: str, error: Exception) -> str:
    """Return the sentence that says why a group is set aside."""
    return (
        f"group {group_id} is set aside and not trained: working on it ended in {type(error).__name__}: {error}; its "
        "spans and rewards stay in the store, and the other groups go on"
    )


def _set_aside(group: JudgedGroup, error: Exception) -> JudgedGroup:
    sentence = quarantined(group.summary.group_id, error)
    return replace(group, summary=replace(group.summary, verdict=Reason.QUARANTINED, refused_reason=sentence))


def _shaped(scheme: CreditScheme, policy: PolicyConfig) -> CreditScheme:
    """Return the scheme with the penalties that the algorithm takes off its credits."""
    overlong = policy.algorithm.overlong
    if overlong is None:
        return scheme
    longest = overlong.max_response_tokens or policy.max_sample_tokens
    return OverlongShaping(scheme, longest, overlong.buffer_tokens or max(longest // 5, 1), overlong.penalty)

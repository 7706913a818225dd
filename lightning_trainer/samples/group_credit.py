"""The credit in each group of a step, and the verdict on the group: first by itself, then among the others.

An error that working on a group raises concerns that group alone: the group is set aside with a sentence, and the
others continue. What a group is made of comes from outside (rewards, spans), so an error that left this module would
recur with the same group forever.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from lightning_trainer.config import PolicyConfig
from lightning_trainer.config.policies.credit import CREDIT_SETTINGS
from lightning_trainer.samples.best_of_n import judge_best
from lightning_trainer.samples.credit.assignment import Assignment, assign, refuse_all
from lightning_trainer.samples.credit.groups import (
    GroupSummary,
    Member,
    judge_group,
    keep_most_uncertain,
    leave_out_below,
)
from lightning_trainer.samples.credit.schemes.registry import credit_scheme
from lightning_trainer.samples.credit.schemes.scheme import CreditScheme
from lightning_trainer.samples.rewards.reward_table import RewardTable
from lightning_trainer.samples.transitions.length_limit import Limit
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.types import Attempt, AttemptState, Credit, RolloutMode, Trajectory

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Baselines:
    """The baseline rewards of some groups, and the baseline attempts that gave none."""

    of_groups: Mapping[str, float] = field(default_factory=dict)
    """By group id, in reward units: the mean if a group has several."""
    unscored: frozenset[str] = frozenset()
    """Baseline attempts without a reward, of groups that have no other."""


def read_baselines(attempts: Iterable[Attempt], rewards: Mapping[str, float | None]) -> Baselines:
    """Return the baselines of the groups that ended baseline attempts are in.

    Args:
        attempts: of any mode.
        rewards: by attempt id, of the attempts as a whole.
    """
    by_group: dict[str, list[str]] = {}
    for attempt in attempts:
        if attempt.mode is RolloutMode.BASELINE and attempt.state is not AttemptState.RUNNING:
            by_group.setdefault(attempt.group_id, []).append(attempt.attempt_id)
    of_groups: dict[str, float] = {}
    unscored: set[str] = set()
    for group_id, attempt_ids in by_group.items():
        if scored := [reward for attempt_id in attempt_ids if (reward := rewards.get(attempt_id)) is not None]:
            of_groups[group_id] = fmean(scored)
        else:
            unscored.update(attempt_ids)
    return Baselines(of_groups, frozenset(unscored))


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
    one_team = _one_team(policy)

    def judged(group_id: str, assignment: Assignment) -> JudgedGroup:
        members = [
            Member(
                attempt=attempt,
                agents=agents_by_attempt.get(attempt.attempt_id, frozenset()),
                reward=rewards.earned.get(attempt.attempt_id),
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
            one_team=one_team,
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
    summaries = [group.summary for group in groups]
    if policy.algorithm.keep_most_uncertain is not None:  # a share of all of them, those below the floor too
        summaries = keep_most_uncertain(summaries, policy.algorithm.keep_most_uncertain)
    summaries = leave_out_below(summaries, deviation_floor)
    return [replace(group, summary=summary) for group, summary in zip(groups, summaries, strict=True)]


def _one_team(policy: PolicyConfig) -> str | None:
    """Return why only attempts by the same agents may be compared; None if they may be by different ones."""
    if policy.algorithm.objective == "dpo":
        return "a preference pair sets the same agents against each other"
    if not policy.credit.one_team:
        return None
    others = ", ".join(name for name, settings in CREDIT_SETTINGS.items() if not settings.one_team)
    return (
        f"{policy.credit.scheme} credit divides by who took part, so attempts that took different routes cannot be "
        f"compared; {others} can compare them"
    )


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
    longest = overlong.longest(policy.max_sample_tokens)
    return OverlongShaping(scheme, longest, overlong.buffer_tokens or max(longest // 5, 1), overlong.penalty)


def overlong_penalty(tokens: int, *, max_response_tokens: int, buffer_tokens: int, penalty: float) -> float:
    """Return the penalty that is taken off, in reward units: 0 or more."""
    over = tokens - (max_response_tokens - buffer_tokens)
    return penalty * min(max(over / buffer_tokens, 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class OverlongShaping:
    """Takes the penalty of a row's longest response off each of the row's credits."""

    scheme: CreditScheme
    max_response_tokens: int
    buffer_tokens: int
    penalty: float = 1.0

    def __call__(self, trajectories_G: Sequence[Trajectory]) -> list[list[Credit]]:
        """See ``CreditScheme``."""
        credits_G = self.scheme(trajectories_G)
        longest: dict[str, int] = {}
        for trajectory, credits_T in zip(trajectories_G, credits_G, strict=True):
            for step, credit in zip(trajectory.transitions, credits_T, strict=True):
                if step.gap:
                    continue  # a call that is not trained is not punished
                longest[credit.row_id] = max(longest.get(credit.row_id, 0), len(step.response_ids))
        return [
            [self._shaped(credit, longest.get(credit.row_id, 0)) for credit in credits_T] for credits_T in credits_G
        ]

    def _shaped(self, credit: Credit, tokens: int) -> Credit:
        if credit.value is None:
            return credit
        taken_off = overlong_penalty(
            tokens,
            max_response_tokens=self.max_response_tokens,
            buffer_tokens=self.buffer_tokens,
            penalty=self.penalty,
        )
        return replace(credit, value=credit.value - taken_off)

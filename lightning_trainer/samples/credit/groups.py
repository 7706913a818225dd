"""Promise 5: a group holds two or more attempts of the same task, or it is refused with the reason.

Each agent is compared with itself in the other attempts, so attempts may take different routes through a team. If
credit depends on who else took part, they may not: a group whose attempts are by different agents is then refused.

Only attempts with something to train count: one attempt alone is not a baseline, whatever else the group contains.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from statistics import pstdev
from typing import Literal, TypeAlias

from lightning_trainer.config import PolicyConfig
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.types import Attempt

Peers: TypeAlias = tuple[str, str]
"""(agent, ``Credit.peers``): rows of a group that have the same pair are compared with each other."""

KEY_NAMES: Mapping[str, str] = {"key": "lightning.group.id", "task": "task id", "prompt": "first prompt"}
"""What ``group_by`` groups by, for people."""

_SAME = 1e-9
"""Credits closer than this, relative to the largest and at least 1, are equal: sums of rewards round."""
_NAMED_MEMBERS = 4


@dataclass(frozen=True, slots=True)
class Member:
    """One attempt as its group sees it."""

    attempt: Attempt
    agents: frozenset[str]
    """The policy's agents that made calls in it."""
    reward: float | None
    """What the attempt earned (``RewardTable.earned``); None when nothing scored it."""
    row_credits: Mapping[Peers, tuple[float, ...]]
    """One for each row (``Credit.row_id``) that has something to train; empty when there is nothing."""


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """What a group was like and whether it is trained."""

    group_id: str
    task_id: str | None
    """None when the attempts are of several tasks."""
    size: int
    """Attempts, scored or not."""
    comparable: int
    """Attempts that were scored and have something to train."""
    rewards: tuple[float | None, ...]
    """Of the attempts, in the order of their ids; None for one that nothing scored."""
    verdict: Reason
    """``SAMPLED`` when it is trained."""
    refused_reason: str | None
    """For people: which group, which members, what to do; None unless it breaks promise 5."""
    spread: float = 0.0
    """Standard deviation of what the comparable attempts earned in credit, in reward units."""
    unpaired: frozenset[Peers] = frozenset()
    """Rows that only one attempt has, such as those of a turn that no other attempt got to: not trained."""
    flat: bool = False
    """Whether all that is compared in the group earned the same, whether or not it is left out for that."""

    @property
    def deviation(self) -> float | None:
        """Standard deviation of the attempts' rewards; None if fewer than two have one."""
        given = [reward for reward in self.rewards if reward is not None]
        return pstdev(given) if len(given) > 1 else None


def judge_group(
    group_id: str,
    members: Sequence[Member],
    *,
    drop_zero_variance: bool,
    group_by: Literal["key", "task", "prompt"] = "key",
    needs_baseline: bool = False,
    baseline: float | None = None,
    one_team: str | None = None,
) -> GroupSummary:
    """Decide whether the attempts of a group may be compared, and whether comparing them teaches anything.

    Args:
        baseline: reward of the group's baseline attempt; if given, the attempts are compared with it and not with one
            another.
        one_team: why only attempts by the same agents may be compared, for people; None if any may be.
    """
    members = sorted(members, key=lambda member: member.attempt.attempt_id)
    comparable = [member for member in members if member.row_credits]
    tasks = sorted({member.attempt.task_id for member in comparable or members})
    attempts_with = Counter(peers for member in comparable for peers in member.row_credits)
    unpaired = frozenset(peers for peers, count in attempts_with.items() if count < 2)
    paired = attempts_with.keys() - unpaired
    name = f"group {group_id} (by {KEY_NAMES[group_by]})"
    verdict, refused_reason = _refusal(name, members, comparable, [] if group_by == "prompt" else tasks, one_team)
    if verdict is None and not paired:
        verdict = Reason.GROUP_TOO_SMALL
        refused_reason = (
            f"{name}: no call of an attempt has a counterpart in another (attempts {_names(comparable)}); the credit "
            f"scheme compares {_listed(_described(unpaired))}"
        )
    if verdict is None and needs_baseline and baseline is None:
        verdict = Reason.NO_BASELINE
        refused_reason = (
            f'{name} has no baseline: no attempt of mode "baseline" with a reward ended in time (attempts '
            f"{_names(comparable)}); run one greedy attempt in it and score it"
        )
    flat = verdict is None and _is_flat(comparable, paired, baseline)
    if verdict is None:
        verdict = Reason.ZERO_VARIANCE_GROUP if flat and drop_zero_variance else Reason.SAMPLED
    return GroupSummary(
        group_id=group_id,
        task_id=tasks[0] if len(tasks) == 1 else None,
        size=len(members),
        comparable=len(comparable),
        rewards=tuple(member.reward for member in members),
        verdict=verdict,
        refused_reason=refused_reason,
        spread=pstdev(_total(member) for member in comparable) if comparable else 0.0,
        unpaired=unpaired,
        flat=flat,
    )


def _refusal(
    group: str, members: Sequence[Member], comparable: Sequence[Member], tasks: Sequence[str], one_team: str | None
) -> tuple[Reason | None, str | None]:
    if len(comparable) < 2:
        return Reason.GROUP_TOO_SMALL, (
            f"{group}: {len(comparable)} of its {len(members)} attempts can be compared (attempts "
            f"{_names(members)}); two or more must be scored and have calls of the policy's that can be trained"
        )
    if len(tasks) > 1:
        return Reason.GROUP_MIXED_TASKS, (
            f"{group} mixes the tasks {_listed(tasks)} (attempts {_names(comparable)}): only attempts of one "
            "task can be compared; give each task a group id of its own"
        )
    agent_sets = sorted({tuple(sorted(member.agents)) for member in comparable})
    if one_team is not None and len(agent_sets) > 1:
        return Reason.GROUP_MIXED_AGENTS, (
            f"{group} mixes attempts by different agents ({_listed(['+'.join(agents) for agents in agent_sets])}; "
            f"attempts {_names(comparable)}): {one_team}"
        )
    return None, None


def _is_flat(comparable: Sequence[Member], paired: Set[Peers], baseline: float | None) -> bool:
    """Whether all rows that are compared with each other have one credit, the baseline's if there is one."""
    also = [] if baseline is None else [baseline]
    return all(
        all_equal([*also, *(value for member in comparable for value in member.row_credits.get(peers, ()))])
        for peers in paired
    )


def _total(member: Member) -> float:
    return math.fsum(value for values in member.row_credits.values() for value in values)


def all_equal(values: Sequence[float]) -> bool:
    """Whether the values differ by no more than rounding error."""
    return max(values) - min(values) <= _SAME * max(1.0, *map(abs, values))


def _described(peers: Sequence[Peers] | frozenset[Peers]) -> list[str]:
    return [f"{agent} {turn}".strip() for agent, turn in sorted(peers)]


def _names(members: Sequence[Member]) -> str:
    return _listed([member.attempt.attempt_id for member in members])


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED_MEMBERS} more" if len(names) > _NAMED_MEMBERS else ""
    return ", ".join(names[:_NAMED_MEMBERS]) + more


# Which groups of a step are worth training: those whose attempts differ most.
#
# Source: Wang et al., RAGEN (arXiv 2504.20073), StarPO-S: of a step's groups, the share whose rewards deviate most is
# kept, since groups with a certain outcome teach little and let training collapse.

_RANKED = (Reason.SAMPLED, Reason.ZERO_VARIANCE_GROUP)


def keep_most_uncertain(groups: Sequence[GroupSummary], share: float) -> list[GroupSummary]:
    """Return the groups with new verdicts; refused ones are not counted, and one is always kept.

    What attempts earned in credit grows with the number of their calls if each call is a row, so rewards of the
    attempts themselves are compared instead if there are any.

    Args:
        share: of the step's comparable groups, in (0, 1].
    """
    ranked = sorted(
        (group for group in groups if group.verdict in _RANKED),
        key=lambda group: (-_uncertainty(group), group.group_id),
    )
    kept = {group.group_id for group in ranked[: math.ceil(share * len(ranked))]}
    return [
        replace(group, verdict=Reason.LOW_VARIANCE_GROUP)
        if group.verdict is Reason.SAMPLED and group.group_id not in kept
        else group
        for group in groups
    ]


def _uncertainty(group: GroupSummary) -> float:
    if group.flat:
        return 0.0
    return group.spread if group.deviation is None else group.deviation


# A moving floor: groups whose attempts hardly differ are left out, measured by the groups of earlier steps.
#
# Source: Yu et al., RLPR (arXiv 2506.18254), section 3: rewards that are probabilities always differ a little, so "all
# the same" never leaves a group out, and what counts as little changes as the policy learns. Hence an exponential
# moving average of the mean deviation of each step. The first step has no floor.


def moving_floor(deviations: Sequence[float], factor: float, decay: float) -> float:
    """Return the floor of the next step.

    Args:
        deviations: of each earlier step, first to last: the mean of its groups' deviations.
        factor: how many times the average the floor is.
        decay: the share of the earlier average that remains after one step, in [0, 1).
    """
    average = None
    for deviation in deviations:
        average = deviation if average is None else decay * average + (1 - decay) * deviation
    return 0.0 if average is None else factor * average


def leave_out_below(groups: Sequence[GroupSummary], floor: float) -> list[GroupSummary]:
    """Return the groups, with a new verdict for those whose rewards deviate less than ``floor``."""
    return [
        replace(group, verdict=Reason.LOW_VARIANCE_GROUP)
        if group.verdict is Reason.SAMPLED and (group.deviation or 0.0) < floor
        else group
        for group in groups
    ]


# Dynamic sampling: a step is filled with further groups until enough of them have something to teach.
#
# Source: Yu et al., DAPO (arXiv 2503.14476), section 3.2. Groups without spread teach nothing, and without this they
# make a step smaller, whether they are left out or still count in a denominator.


def groups_wanted(policy: PolicyConfig, taken: int, groups: Sequence[GroupSummary]) -> int:
    """Return how many groups the step should take; ``taken`` when it has enough or may not take more.

    Args:
        taken: groups that the step has now.
        groups: those groups, judged.
    """
    algorithm = policy.algorithm
    if not algorithm.dynamic_sampling:
        return taken
    short = policy.groups_per_step - sum(group.verdict is Reason.SAMPLED and not group.flat for group in groups)
    return max(taken, min(taken + short, algorithm.max_sampling_rounds * policy.groups_per_step))

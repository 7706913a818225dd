"""The attempt has no others to compare it with, or comparing them teaches nothing."""

from collections import Counter

from lightning_trainer.explain.case import Case
from lightning_trainer.explain.finding import Finding, counted, listed
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.types import Attempt

_NAMES = {
    Reason.GROUP_TOO_SMALL: "group too small",
    Reason.GROUP_MIXED_TASKS: "mixed tasks",
    Reason.GROUP_MIXED_AGENTS: "mixed agents",
    Reason.NO_BASELINE: "no baseline",
    Reason.NO_PEERS: "no peers",
    Reason.ZERO_VARIANCE_GROUP: "equal rewards",
}


def diagnose(case: Case) -> Finding | None:
    """Find an attempt whose group was refused, or whose group's rewards are all equal."""
    group = case.group
    reason = next((reason for reason in _NAMES if case.met(reason)), None)
    if group is None or reason is None or case.waits or case.passed_by:
        return None  # a waiting group may still grow, see `waiting`; an attempt passed by is compared with none
    if len(case.members) == 1:
        return Finding("group of one", f"group {group.group_id} holds this attempt alone{_alone(case)}")
    if reason is Reason.GROUP_TOO_SMALL and (others := _why_not(case)):
        return Finding(
            _NAMES[reason],
            f"of the {len(case.members)} attempts of group {group.group_id} only this one can be compared ({others}); "
            "two or more must be scored and have calls that can be trained",
        )
    if reason is Reason.ZERO_VARIANCE_GROUP:
        reward = next((f" ({reward:g})" for reward in group.rewards if reward is not None), "")
        return Finding(
            _NAMES[reason],
            f"all {counted(len(case.members), 'attempt')} of group {group.group_id} earned the same{reward}, so none "
            "is better than another; harder or easier tasks, or a finer reward, would tell them apart",
        )
    return Finding(_NAMES[reason], group.refused_reason or reason.explanation)


def _alone(case: Case) -> str:
    return (
        ", and an advantage compares two or more attempts of one task: run each task "
        f"group_size = {case.policy.group_size} times with one group_id"
    )


def _why_not(case: Case) -> str:
    """Return why each of the other attempts cannot be compared; "" if unknown."""
    return listed(
        f"{member.attempt_id}: {reason}"
        for member in case.members
        if member.attempt_id != case.attempt_id and (reason := _reason_of(member, case))
    )


def _reason_of(member: Attempt, case: Case) -> str:
    reasons = Counter(case.judged.reasons_of.get(member.attempt_id, ()))
    reasons.pop(Reason.GROUP_TOO_SMALL.value, None)
    return reasons.most_common(1)[0][0].replace("_", " ") if reasons else "no call of the policy's"

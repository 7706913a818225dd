"""The attempt has ended and can be trained, but no step takes it now, or parts of it are missing."""

from lightning_trainer.explain.case import Case
from lightning_trainer.explain.finding import Finding, counted


def diagnose(case: Case) -> Finding | None:
    """Say what an ended attempt waits for: training to resume, missing spans, its group, its baseline, more groups."""
    policy, group = case.policy, case.group
    if case.from_files and case.lacking:
        return Finding(
            "spans missing",
            f"{counted(case.lacking, 'span')} of attempt {case.attempt_id} had started and are not among those that "
            "were read; what they said of it (calls, rewards) is not counted",
            blocks=False,
        )
    if not case.waits:
        return None
    if not policy.train:
        return Finding("train = false", f"policy {policy.name} records and serves, and is never updated")
    if (resting := _resting(case)) is not None:
        return resting
    if case.lacking:
        return Finding(
            "spans missing",
            f"{counted(case.lacking, 'span')} of attempt {case.attempt_id} had started and have not arrived; it is "
            f"held back until none has come for span_timeout_s = {policy.span_timeout_s:g} s",
        )
    if group is None:
        return None
    here = len(case.members)
    if here < policy.group_size:
        name = "group of one" if here == 1 else "group not full"
        until = f"at most group_timeout_s = {policy.group_timeout_s:g} s after the last"
        if here == 1:
            given = any(one.group_id != one.task_id for one in case.members)
            until = "since one attempt alone has no other to be compared with" + (f", {until}" if given else "")
        return Finding(
            name,
            f"group {group.group_id} has {here} of group_size = {policy.group_size} attempts; it waits for the others, "
            f"{until}",
        )
    if policy.algorithm.needs_baseline and not case.baselines:
        return Finding(
            "no baseline",
            f"group {group.group_id} is full but for its baseline, which advantage = {policy.algorithm.advantage!r} "
            'takes off: one greedy attempt of mode "baseline"; it is waited for at most group_timeout_s = '
            f"{policy.group_timeout_s:g} s after the last attempt",
        )
    return Finding(
        "waiting",
        f"group {group.group_id} is full, and a step starts when groups_per_step = {policy.groups_per_step} groups are "
        f"ready (there are {case.groups_ready}) while `lightning-trainer serve` runs",
    )


def _resting(case: Case) -> Finding | None:
    """Say why no step of the policy takes attempts now, however many groups are ready."""
    name = case.policy.name
    if case.ended is not None:
        return Finding(
            "finished",
            f"step {case.ended} was the last that was asked for of policy {name}, so none takes the attempt; with a "
            "larger max_steps, or one more stage, training goes on at the next start of `lightning-trainer serve`",
        )
    if case.paused is not None:
        return Finding(
            "held", f"training of policy {name} is paused: {case.paused}; `lightning-trainer resume` lets it go on"
        )
    if case.demonstration_file is not None:
        last, later = case.demonstration_file
        which = "all further steps" if last is None else f"the steps up to {last}"
        return Finding(
            "shown a file",
            f"{which} of policy {name} are shown the data of their stage, and not what agents do; "
            + ("the attempt waits for the steps after them" if later else "no later step takes the attempt"),
        )
    return None

"""Several named rewards to one: the weighted sum, and what becomes of it when a part is missing.

Formula: ``sum over the names n of weight_n * value_n``, separately for calls, agents, and attempts.

A missing part is never zero. If anything was given a reward of a name, that name is expected of everything that it is
compared with: of all attempts of a group, of all attempts' agents of one name, of all calls of one agent in a group. If
an expected part is missing, the sum is missing. If nothing in a group was given a reward of a name, no sum in the group
is complete, and the whole group is left out, with a sentence; so is a group in which nothing has all parts. An attempt
that is compared with nothing is its own group, without a sentence. To mean zero, give zero.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lightning_trainer.samples.rewards.targets import Scope, Target
from lightning_trainer.types import Attempt, Call, RolloutMode

_Group = tuple[bool, str]
"""(True, group id), or (False, id of an attempt that is compared with nothing)."""
_Peers = tuple[_Group, Scope, str | None]
"""(group, scope, agent): a name given to one of them is expected of all."""


@dataclass(frozen=True, slots=True)
class Sums:
    """The weighted sums, and why some are missing."""

    values: Mapping[Target, float]
    """Complete sums only, of groups that are not left out."""
    incomplete: Mapping[str, str]
    """The groups that are left out: the reason, by group id."""
    problems: tuple[str, ...]


def weigh(
    given: Mapping[Target, Mapping[str, float]],
    weights: Mapping[str, float],
    calls: Sequence[Call],
    attempts: Mapping[str, Attempt],
) -> Sums:
    """Return the sums.

    Args:
        given: finite values by target and name; every name has a weight.
        calls: everything that can be a target of the scope ``CALL``.
        attempts: by id; only those that are trained say what is expected.
    """
    if len(weights) == 1:
        (weight,) = weights.values()
        return Sums({target: weight * value for target, own in given.items() for value in own.values()}, {}, ())
    call_of = {call.call_id: call for call in calls}
    peers_of = {target: _peers(target, call_of, attempts) for target in given}
    expected: dict[_Peers, set[str]] = {}
    for target, own in given.items():
        expected.setdefault(peers_of[target], set()).update(own)
    complete = {target for target, own in given.items() if len(own) == len(expected[peers_of[target]])}
    lacking: dict[str, list[Target]] = {}
    for target in sorted(given.keys() - complete):
        (compared, _), *_ = peers_of[target]
        if not compared:
            continue
        for name in sorted(expected[peers_of[target]] - given[target].keys()):
            lacking.setdefault(name, []).append(target)
    incomplete = _incomplete(expected, {peers_of[target] for target in complete}, weights)
    return Sums(
        values={
            target: sum(weights[name] * value for name, value in sorted(given[target].items()))
            for target in complete
            if peers_of[target][0] not in incomplete
        },
        incomplete={
            group_id: f"group {group_id}: {reason}, so no weighted reward can be summed up; give 0 where you mean 0, "
            "or leave the name out of the policy's reward"
            for (compared, group_id), reason in sorted(incomplete.items())
            if compared
        },
        problems=tuple(
            f"reward {name!r} is missing where others that it is compared with have it: {len(targets)} (such as "
            f"{targets[0]}); their sum of {', '.join(weights)} counts as missing, so give 0 where you mean 0"
            for name, targets in sorted(lacking.items())
        ),
    )


def _peers(target: Target, call_of: Mapping[str, Call], attempts: Mapping[str, Attempt]) -> _Peers:
    agent, attempt_id = target.agent, target.name
    if target.scope is Scope.CALL:
        call = call_of[target.name]
        agent, attempt_id = call.agent, call.attempt_id or ""
    attempt = attempts.get(attempt_id)
    # These are compared with nothing, so what they were given is not expected of others.
    alone = (RolloutMode.EVALUATE, RolloutMode.RETRIED, RolloutMode.SHADOW, RolloutMode.DROPPED)
    if attempt is None or attempt.mode in alone:
        return (False, attempt_id or target.name), target.scope, agent
    return (True, attempt.group_id), target.scope, agent


def _incomplete(
    expected: Mapping[_Peers, set[str]], complete: set[_Peers], weights: Mapping[str, float]
) -> dict[_Group, str]:
    seen: dict[_Group, set[str]] = {}
    reasons: dict[_Group, str] = {}
    for (group, scope, agent), names in sorted(expected.items(), key=lambda entry: tuple(map(str, entry[0]))):
        seen.setdefault(group, set()).update(names)
        if (group, scope, agent) not in complete:
            whose = {Scope.ATTEMPT: "attempt", Scope.AGENT: f"attempt's agent {agent}"}.get(scope, f"call of {agent}")
            reasons.setdefault(group, f"no {whose} has all of {', '.join(sorted(names))}")
    for group, names in seen.items():
        if absent := [name for name in weights if name not in names]:
            reasons[group] = f"nobody in it was given {', '.join(absent)}"
    return reasons

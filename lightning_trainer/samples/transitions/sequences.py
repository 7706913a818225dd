"""Transitions to samples, in one of three ways (``samples`` in ``[[policy]]``).

``calls``   every transition is a sequence of its own.
``merged``  transitions of one agent in one attempt that extend each other token for token share one sequence. With
            observations O and answers A, calls (O1 -> A1) and (O1+A1+O2 -> A2) become O1+A1+O2+A2 with mask 0 on O1 and
            O2 and 1 on A1 and A2; a call whose prompt is O1+A1' instead forks into a sequence of its own.
``tree``    the same over the token tree of the whole group: a call also shares the sequence of another agent's, or
            another attempt's, whose tokens it extends (a hand-over, a sub-agent that continues its caller's
            conversation, an attempt that was forked from another one).

Invariants of all three: a sample is exactly the tokens that the engine saw at its last call (promise 3); every
transition is trained in exactly one sample, the first whose path it lies on, and is context with mask 0 in the others;
no token that was not sampled has mask 1 (promise 2), and tokens that were sampled without a choice have mask 0. A
transition that was sampled at another temperature than the one it extends starts a sequence of its own, since the
trainer scores a sequence at one temperature.

The same tokens, sampled by several attempts after the same prompt, are trained once for each: each attempt has an
advantage of its own, and dropping the repetitions would change the gradient. They are one node of the tree that the
update engine computes (``training/tree``), so they cost once.
"""

from collections.abc import Container, Mapping, Sequence
from typing import Literal, TypeAlias

from lightning_trainer.samples.transitions.length_limit import Limit, without_choice
from lightning_trainer.samples.transitions.token_tree import token_parents
from lightning_trainer.token_ids import TokenIds, packed
from lightning_trainer.types import Credit, Gap, Sample, Segment, Trajectory, Transition

# Calls that are not trained, attached to those that are: how reward gets across them if a critic's scheme runs.
#
# Such a scheme works out advantages in the trainer, from what is in the batch. So a sample brings along the untrained
# calls that come after one of its own, with what they earned; an untrained call that comes after no trained one is not
# needed.


def gaps_after(
    trajectories_G: Sequence[Trajectory], trained: Container[str], passed_on: Mapping[str, float]
) -> dict[str, list[Transition]]:
    """Return, by trained transition's id, the untrained ones between it and the next trained ones of its branches.

    Args:
        passed_on: what the untrained ones earned, by id; one that is not in it passes nothing on.
    """
    after: dict[str, list[Transition]] = {}
    nearest: dict[str, str] = {}
    for trajectory in trajectories_G:
        for step in trajectory.transitions:  # none comes before the one that it follows
            name, parent = step.transition_id, step.parent_id
            if parent is None or name in trained or name not in passed_on:
                continue
            above = parent if parent in trained else nearest.get(parent)
            if above is not None:
                nearest[name] = above
                after.setdefault(above, []).append(step)
    return after


Samples: TypeAlias = Literal["calls", "merged", "tree"]

_Step: TypeAlias = tuple[Trajectory, Transition]


def samples_of(
    trajectories_G: Sequence[Trajectory],
    credits: Mapping[str, Credit],
    limit: Limit,
    how: Samples = "merged",
    *,
    baseline: float | None = None,
    passed_on: Mapping[str, float] | None = None,
) -> tuple[Sample, ...]:
    """Return the samples of one group.

    Args:
        trajectories_G: of every agent of every attempt of the group.
        credits: by transition id, of the transitions to be trained; others are at most context.
        limit: each of the transitions to be trained has tokens that fit it.
        how: what shares a sequence.
        baseline: reward of the group's baseline attempt, if it has one.
        passed_on: by transition id, what those that are not trained earned; given if a critic's scheme asks for it.
    """
    cuts = limit.over_length == "cut"
    steps = [
        (trajectory, limit.cut(transition) if cuts else transition)
        for trajectory in trajectories_G
        for transition in trajectory.transitions
        if transition.transition_id in credits
    ]
    parents = [
        None if parent is None or steps[parent][1].temperature != transition.temperature else parent
        for parent, (_, transition) in zip(_extended(trajectories_G, steps, how), steps, strict=True)
    ]
    orders = {
        step.transition_id: order
        for trajectory in trajectories_G
        for order, step in enumerate(trajectory.transitions)
        if step.transition_id in credits
    }
    gaps = gaps_after(trajectories_G, credits, passed_on) if passed_on else {}
    inner = set(parents)
    trained = [False] * len(steps)
    samples: list[Sample] = []
    for leaf in range(len(steps)):
        if leaf in inner:
            continue
        path: list[int] = []
        index: int | None = leaf
        # The ancestors of a trained transition were trained with it: the walk ends at the first one.
        while index is not None and not trained[index]:
            trained[index] = True
            path.append(index)
            index = parents[index]
        samples.append(
            _sample([steps[index] for index in reversed(path)], credits, orders, baseline, gaps, passed_on or {})
        )
    return tuple(samples)


def _extended(trajectories_G: Sequence[Trajectory], steps: Sequence[_Step], how: Samples) -> Sequence[int | None]:
    """Return for each step the one whose sequence it continues."""
    if how == "calls":
        return [None] * len(steps)
    if how == "tree":
        owners = [(trajectory.attempt.attempt_id, trajectory.agent) for trajectory, _ in steps]
        return token_parents([transition for _, transition in steps], owners)
    place: dict[str | None, int] = {transition.transition_id: index for index, (_, transition) in enumerate(steps)}
    above = {step.transition_id: step.extends for trajectory in trajectories_G for step in trajectory.transitions}
    for transition_id, found in above.items():
        if found is None or found in place:
            continue
        # Untrained transitions in between are skipped, each only once.
        passed = [transition_id]
        while found is not None and found not in place:
            passed.append(found)
            found = above[found]
        above.update(dict.fromkeys(passed, found))
    return [place.get(above[transition.transition_id]) for _, transition in steps]


def _sample(
    path: Sequence[_Step],
    credits: Mapping[str, Credit],
    orders: Mapping[str, int],
    baseline: float | None,
    gaps_after: Mapping[str, Sequence[Transition]],
    passed_on: Mapping[str, float],
) -> Sample:
    """Return the sequence of a path's last transition, with a segment for each transition of the path."""
    last, leaf = path[-1]
    token_ids = TokenIds(packed(leaf.prompt_ids) + packed(leaf.response_ids))
    mask = bytearray(len(token_ids))
    logprobs = [0.0] * len(token_ids)
    segments: list[Segment] = []
    gaps: list[Gap] = []
    routed = 0  # positions whose experts are known, or never will be
    for step in path:
        _, transition = step
        if transition.gap:
            raise ValueError(f"transition {transition.transition_id} is a gap and cannot be trained; leave it out")
        start = len(transition.prompt_ids)
        end = start + len(transition.response_ids)
        mask[start:end] = b"\1" * (end - start)
        logprobs[start:end] = transition.behavior_logprobs
        for place in without_choice(transition.support):
            mask[start + place] = 0
            logprobs[start + place] = 0.0
        others = _others(step, path[-1])
        name = transition.transition_id
        segments.append(_segment(transition, credits[name], orders[name], others, routed))
        if transition.routed_experts is not None:
            routed = end - 1
        gaps += [
            Gap(gap.transition_id, passed_on[gap.transition_id], gap.parent_id, *others)
            for gap in gaps_after.get(name, ())
        ]
    return Sample(
        sample_id=f"{leaf.attempt_id}/{leaf.transition_id}",
        policy=last.policy,
        agent=last.agent,
        group_id=last.attempt.group_id,
        attempt_id=leaf.attempt_id,
        token_ids=token_ids,
        loss_mask=tuple(mask),
        behavior_logprobs=tuple(logprobs),
        segments=tuple(segments),
        temperature=leaf.temperature,
        media=leaf.media,
        baseline=baseline,
        gaps=tuple(gaps),
    )


def _others(step: _Step, end: _Step) -> tuple[str | None, str | None]:
    """Return the agent and the attempt of a step, each None if it is the same as the end's."""
    (trajectory, transition), (last, leaf) = step, end
    return (
        None if trajectory.agent == last.agent else trajectory.agent,
        None if transition.attempt_id == leaf.attempt_id else transition.attempt_id,
    )


def _segment(
    transition: Transition, credit: Credit, order: int, others: tuple[str | None, str | None], routed: int
) -> Segment:
    """Return the part of a sequence that a transition sampled.

    Args:
        others: its agent and its attempt, each None if it is the same as the sequence's.
        routed: tokens whose experts an earlier segment of the sequence has.
    """
    start = len(transition.prompt_ids)
    end = start + len(transition.response_ids)
    experts = transition.routed_experts
    agent, attempt_id = others
    return Segment(
        start,
        end,
        transition.transition_id,
        transition.policy_version,
        credit.value,
        credit.row_id,
        credit.peers,
        agent,
        attempt_id,
        transition.parent_id,
        transition.shaping,
        transition.support,
        # What the engine recorded first for a position is what sampled the tokens after it.
        None if experts is None else experts.between(routed, end - 1),
        order,
    )

"""Transitions to samples: those that extend each other token for token share one sequence.

With observations O and answers A, calls (O1 -> A1) and (O1+A1+O2 -> A2) become the one sequence O1+A1+O2+A2 with mask
0 on O1 and O2 and 1 on A1 and A2; a call whose prompt is O1+A1' instead, or that was sampled at another temperature,
forks into a sequence of its own. Invariants:
a sample is exactly the tokens that the engine saw at its last call (promise 3); every transition is trained in exactly
one sample, the first whose path it lies on (by start time, then id, of the last call), and is context with mask 0 in
the others; no token that was not sampled has mask 1 (promise 2).
"""

from collections.abc import Mapping, Sequence
from itertools import chain

from lightning_trainer.transitions.token_tree import token_parents
from lightning_trainer.types import Credit, Sample, Segment, Trajectory, Transition


def fits(transition: Transition, max_sample_tokens: int) -> bool:
    """Whether a sequence can hold the transition with all of its context.

    A path is cut to its longest prefix of whole transitions that fits: exactly those that fit by themselves remain,
    for a path's earlier transitions are shorter. When not even the first one fits, the whole path is left out.
    """
    return len(transition.prompt_ids) + len(transition.response_ids) <= max_sample_tokens


def samples_of(trajectory: Trajectory, credits: Mapping[str, Credit]) -> tuple[Sample, ...]:
    """Merge the transitions of a trajectory that are to be trained.

    Args:
        trajectory: of one agent in one attempt.
        credits: by transition id, of the transitions to be trained; others are at most context.
    """
    transitions = [transition for transition in trajectory.transitions if transition.transition_id in credits]
    # The trainer scores a sequence at one temperature.
    parents = [
        None if parent is None or transitions[parent].temperature != transition.temperature else parent
        for parent, transition in zip(token_parents(transitions), transitions, strict=True)
    ]
    inner = set(parents)
    trained = [False] * len(transitions)
    samples: list[Sample] = []
    for leaf in range(len(transitions)):
        if leaf in inner:
            continue
        path: list[int] = []
        index: int | None = leaf
        # The ancestors of a trained transition were trained with it: the walk ends at the first one.
        while index is not None and not trained[index]:
            trained[index] = True
            path.append(index)
            index = parents[index]
        samples.append(_sample(trajectory, [transitions[index] for index in reversed(path)], credits))
    return tuple(samples)


def _sample(trajectory: Trajectory, path: Sequence[Transition], credits: Mapping[str, Credit]) -> Sample:
    leaf = path[-1]
    masks: list[Sequence[int]] = []
    logprobs: list[Sequence[float]] = []
    segments: list[Segment] = []
    position = 0
    for transition in path:
        start = len(transition.prompt_ids)
        end = start + len(transition.response_ids)
        credit = credits[transition.transition_id]
        masks += [(0,) * (start - position), (1,) * (end - start)]
        logprobs += [(0.0,) * (start - position), transition.behaviour_logprobs]
        segments.append(
            Segment(
                start,
                end,
                transition.transition_id,
                transition.policy_version,
                credit.value,
                credit.row_id,
                credit.peers,
            )
        )
        position = end
    return Sample(
        sample_id=f"{trajectory.attempt.attempt_id}/{leaf.transition_id}",
        policy=trajectory.policy,
        agent=trajectory.agent,
        group_id=trajectory.attempt.group_id,
        attempt_id=trajectory.attempt.attempt_id,
        token_ids=leaf.prompt_ids + leaf.response_ids,
        loss_mask=tuple(chain.from_iterable(masks)),
        behaviour_logprobs=tuple(chain.from_iterable(logprobs)),
        segments=tuple(segments),
        temperature=leaf.temperature,
    )

"""A batch on which the formulas differ: both sides of every clip, holes in masks, rows of unequal length.

Three groups of four attempts; half of the attempts have two calls with a tool's answer between. The engine's logprobs
are the model's own with noise, as those of older weights would be.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lightning_trainer.types import Sample, Segment

_GROUPS, _ATTEMPTS, _SEED = 3, 4, 7

Score = Callable[[Sequence[Sequence[int]]], Sequence[Sequence[float]]]
"""Log-probabilities of every token of each sequence except its first."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of the samples, for libraries that can be given only some."""

    two_calls_are_rows: bool = False
    """Every call has a reward and is a row of its own; otherwise every attempt has one and is a row."""
    one_call: bool = False
    """No attempt has a second call."""
    noise_nats: float = 0.25
    reward_scale: float = 1.0
    """Factor of rewards between 0 and 1; with a large one it does not matter what is added to a deviation."""


def batch(score: Score, vocabulary: int, shape: Shape) -> list[Sample]:
    """Return the samples."""
    source = random.Random(_SEED)
    instructions = _tokens(source, 24, vocabulary)
    drawn: list[tuple[int, int, list[int], list[int]]] = []
    for group in range(_GROUPS):
        prompt = instructions + _tokens(source, 6, vocabulary)
        for attempt in range(_ATTEMPTS):
            first = _tokens(source, source.randint(3, 14), vocabulary)
            ids, mask = prompt + first, [0] * len(prompt) + [1] * len(first)
            if attempt % 2 and not shape.one_call:
                second = _tokens(source, source.randint(2, 8), vocabulary)
                ids, mask = ids + _tokens(source, 5, vocabulary) + second, mask + [0] * 5 + [1] * len(second)
            drawn.append((group, attempt, ids, mask))
    logprobs = score([ids for _, _, ids, _ in drawn])
    return [
        _sample(source, group, attempt, ids, mask, own, shape)
        for (group, attempt, ids, mask), own in zip(drawn, logprobs, strict=True)
    ]


def _tokens(source: random.Random, count: int, vocabulary: int) -> list[int]:
    return [source.randrange(vocabulary) for _ in range(count)]


def _sample(
    source: random.Random,
    group: int,
    attempt: int,
    ids: list[int],
    mask: list[int],
    own: Sequence[float],
    shape: Shape,
) -> Sample:
    name, reward = f"g{group}a{attempt}", round(source.random(), 3) * shape.reward_scale
    starts = [index for index, bit in enumerate(mask) if bit and not mask[index - 1]]
    segments = []
    for number, start in enumerate(starts):
        end = next((index for index in range(start, len(mask)) if not mask[index]), len(mask))
        call, follows = f"{name}/{number}", f"{name}/{number - 1}" if number else None
        credit = round(source.random(), 3) if shape.two_calls_are_rows else reward
        segments.append(
            Segment(start, end, call, 0, credit, call if shape.two_calls_are_rows else name, follows=follows)
        )
    behavior = [0.0, *(value + source.gauss(0.0, shape.noise_nats) for value in own)]
    return Sample(
        sample_id=name,
        policy="benchmark",
        agent="agent",
        group_id=f"g{group}",
        attempt_id=name,
        token_ids=tuple(ids),
        loss_mask=tuple(mask),
        behavior_logprobs=tuple(min(value, -1e-3) * bit for value, bit in zip(behavior, mask, strict=True)),
        segments=tuple(segments),
        baseline=0.25 * (group + 1),
    )

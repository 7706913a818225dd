"""What the tokens of a batch were sampled from, on its way from segments through verl's TensorDict to rows of logits;
and by which experts, to rows of hidden states.

A batch carries one table of segments, which every part of the batch keeps, and for every token of a response the
segment that it is in; a batch that was sampled from the plain softmax throughout carries neither. The tokens in front
of a token, which penalties count, are in the batch anyway. In the same way it carries one table of recorded experts
and, for every token, its row.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from verl.utils import tensordict_utils as tu

from lightning_trainer.errors import TrainingError
from lightning_trainer.sampling import Shaping, Support
from lightning_trainer.training.tree.drawn import Draw, Ints
from lightning_trainer.training.update.batch.packed import PackedSamples
from lightning_trainer.types import Sample, Segment

SEGMENTS = "lightning_segments"
"""Key of the table."""
SEGMENT_OF_TOKEN = "lightning_segment_of_token"
"""Key of the jagged tensor, laid out like ``loss_mask``: 0, or 1 + the place in the table."""


EXPERTS = "lightning_experts"
"""Key of the table."""
EXPERTS_OF_TOKEN = "lightning_experts_of_token"
"""Key of the jagged tensor, laid out like ``input_ids``: 0 where they are not known, or 1 + the row in the table."""


@dataclass(frozen=True, slots=True)
class ExpertTable:
    """The recorded experts of a batch; opaque to verl and to TensorDict."""

    ids_NLK: npt.NDArray[np.unsignedinteger]
    """The ``K`` experts of ``N`` positions in ``L`` layers; the first row stands for positions whose experts are not
    known."""

    def of(self, rows: Ints, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the experts of these rows, and which of them are known."""
        ids = torch.from_numpy(self.ids_NLK[rows].astype(np.int64))
        return ids.to(device), torch.from_numpy(rows > 0).to(device)


@dataclass(frozen=True, slots=True)
class SampledFrom:
    """A segment as far as its distribution goes."""

    start: int
    """Position of its first token in the sample: what is in front of it is the prompt."""
    shaping: Shaping | None
    support: Support | None


@dataclass(frozen=True, slots=True)
class SegmentTable:
    """The segments of a batch; opaque to verl and to TensorDict, which would take a sequence apart."""

    segments: tuple[SampledFrom, ...]


class SlotDraws(NamedTuple):
    """What the slots ``S`` that a micro-batch asks for were drawn from, one after the other."""

    draw_of_S: list[Draw | None]
    """None: sampled from all of the vocabulary, by the model's own logits."""
    kind_of_S: Ints
    """Slots after the same tokens, at the same temperature, are drawn alike if this is equal; 0: no draw."""


def segment_table(samples: Sequence[Sample]) -> tuple[SegmentTable | None, list[list[int]]]:
    """Return the table of a batch, None if it would be empty, and for each sample one number per token."""
    table: list[SampledFrom] = []
    numbers = []
    for sample in samples:
        of_token = [0] * len(sample.token_ids)
        for segment in sample.segments:
            if _is_special(segment):
                table.append(SampledFrom(segment.start, segment.shaping, segment.support))
                of_token[segment.start : segment.end] = [len(table)] * (segment.end - segment.start)
        numbers.append(of_token)
    return SegmentTable(tuple(table)) if table else None, numbers


def expert_table(samples: Sequence[Sample]) -> tuple[ExpertTable | None, list[Ints]]:
    """Return the table of recorded experts, None if there are none, and for each sample one number per token.

    Raises:
        TrainingError: they are of different models.
    """
    shapes: set[tuple[int, int]] = set()
    rows: list[npt.NDArray[np.unsignedinteger]] = []
    numbers = []
    size = 1
    for sample in samples:
        of_token = np.zeros(len(sample.token_ids), np.int64)
        for segment in sample.segments:
            if (experts := segment.routed_experts) is None:
                continue
            shapes.add((experts.layers, experts.top_k))
            rows.append(np.frombuffer(experts.ids, f"<u{experts.width}"))
            of_token[experts.start : experts.end] = np.arange(size, size + len(experts))
            size += len(experts)
        numbers.append(of_token)
    if not shapes:
        return None, numbers
    if len(shapes) > 1:
        told = " and ".join(f"{layers} layers of {top_k} a token" for layers, top_k in sorted(shapes))
        raise TrainingError(f"the recorded experts of one batch are of {told}; a batch is of one model")
    ((layers, top_k),) = shapes
    unknown = np.zeros(layers * top_k, np.uint8)
    return ExpertTable(np.concatenate([unknown, *rows]).reshape(-1, layers, top_k)), numbers


def experts_recorded(samples: Sequence[Sample]) -> float | None:
    """Return the share of the positions leading to a sampled token whose experts are known; None if none are."""
    positions = sum(sample.segments[-1].end - 1 for sample in samples)
    known = sum(
        len(segment.routed_experts)
        for sample in samples
        for segment in sample.segments
        if segment.routed_experts is not None
    )
    return known / positions if known else None


def require_drawable(samples: Iterable[Sample]) -> None:
    """Refuse samples with a token that could not have been sampled from what its segment says it was sampled from.

    Raises:
        TrainingError: there is one; its log-probability would be minus infinity.
    """
    for sample in samples:
        for segment in sample.segments:
            if segment.support is None:
                continue
            if len(segment.support) != segment.end - segment.start:
                raise TrainingError(
                    f"sample {sample.sample_id}: the support of transition {segment.transition_id} has "
                    f"{len(segment.support)} tokens and its response {segment.end - segment.start}; leave it out"
                )
            tokens = sample.token_ids[segment.start : segment.end]
            if (place := segment.support.first_outside(tokens)) is not None:
                raise TrainingError(
                    f"sample {sample.sample_id}: token {tokens[place]} (number {place} of the response of transition "
                    f"{segment.transition_id}) is not among the tokens that it is said to be sampled from; leave it out"
                )


def slot_draws(batch: Any, samples: PackedSamples) -> SlotDraws | None:
    """Return what the asked slots of a micro-batch were drawn from; None if all were drawn plainly."""
    table: Any = tu.get_non_tensor_data(batch, SEGMENTS, None)
    if table is None:
        return None
    of_token = batch[SEGMENT_OF_TOKEN]
    numbers, offsets = of_token.values().cpu().numpy(), of_token.offsets().cpu().numpy()
    prompts = np.diff(batch["prompts"].offsets().cpu().numpy())
    draws: list[Draw | None] = []
    kinds: dict[tuple[Any, ...], int] = {}
    kind_of_slot: list[int] = []
    for index, asked in enumerate(samples.asked):
        ids = samples.ids[samples.offsets[index] : samples.offsets[index + 1]]
        for token in asked + 1:
            place = offsets[index] + token - prompts[index]
            # What a filler asks for lies in the prompt.
            number = numbers[place] if token >= prompts[index] else 0
            draw = _draw(table.segments[number - 1], int(token), ids) if number else None
            draws.append(draw)
            kind_of_slot.append(0 if draw is None else kinds.setdefault(_kind(draw), len(kinds) + 1))
    return SlotDraws(draws, np.array(kind_of_slot, np.int64)) if kinds else None


def _is_special(segment: Segment) -> bool:
    shaped = segment.shaping is not None and not segment.shaping.changes_nothing
    return shaped or (segment.support is not None and any(index >= 0 for index in segment.support.pattern_L))


def _draw(segment: SampledFrom, token: int, ids: Ints) -> Draw | None:
    pattern, vocabulary = None, 0
    if segment.support is not None:
        vocabulary = segment.support.vocabulary
        index = segment.support.pattern_L[token - segment.start]
        pattern = segment.support.patterns[index] if index >= 0 else None
    shaping = None if segment.shaping is None or segment.shaping.changes_nothing else segment.shaping
    if pattern is None and shaping is None:
        return None
    return Draw(shaping, pattern, vocabulary, ids[:token], segment.start)


def _kind(draw: Draw) -> tuple[Any, ...]:
    """Return what tells two draws after the same tokens apart; where the prompt ends matters only to penalties."""
    return draw.pattern, draw.vocabulary, draw.shaping, None if draw.shaping is None else draw.prompt

"""DPO as its paper writes it, in plain PyTorch, and batches of demonstrations and of pairs."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.nn.functional import logsigmoid

from benchmarks.algorithms.losses import Tokens
from benchmarks.algorithms.papers import Formula
from lightning_trainer.types import Sample

_OF_A_PAIR = ("a0", "a1")
"""An answer of one call and one of two calls: a pair's sides differ in length and in how many runs they have."""


def batch(samples: Sequence[Sample], formula: Formula) -> list[Sample]:
    """Return samples that were drawn for reinforcement learning as the objective takes them (pairs for DPO)."""
    if formula.objective == "rl":
        return list(samples)
    if formula.objective == "sft":
        return [_credited(sample, 1.0) for sample in samples]
    return [
        _credited(sample, 1.0 if sample.sample_id.endswith(_OF_A_PAIR[0]) else -1.0)
        for sample in samples
        if sample.sample_id.endswith(_OF_A_PAIR)
    ]


def _credited(sample: Sample, credit: float) -> Sample:
    return replace(sample, segments=tuple(replace(segment, credit=credit) for segment in sample.segments))


def preference_loss(sequences: Sequence[Tokens], samples: Sequence[Sample], dpo: Formula) -> torch.Tensor:
    """DPO, arXiv 2305.18290, equation 7.

    Label smoothing: Mitchell, A note on DPO with noisy preferences (2023), equation 3. Means over tokens instead of
    sums: Lambert et al., Tulu 3, arXiv 2411.15124, equation 6.
    """
    sides: dict[tuple[str, bool], torch.Tensor] = {}
    for tokens, sample in zip(sequences, samples, strict=True):
        assert tokens.reference is not None
        ratios = tokens.log_p - tokens.reference
        credit = sample.segments[0].credit
        assert credit is not None
        sides[sample.group_id, credit > 0] = ratios.mean() if dpo.length_normalized else ratios.sum()
    pairs = {group for group, _ in sides}
    margins = torch.stack([dpo.beta * (sides[pair, True] - sides[pair, False]) for pair in sorted(pairs)])
    losses = -(1 - dpo.label_smoothing) * logsigmoid(margins) - dpo.label_smoothing * logsigmoid(-margins)
    return losses.mean()

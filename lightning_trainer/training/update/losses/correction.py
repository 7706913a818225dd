"""Off-policy correction before a step: importance weights and rejections between the engine and the trainer.

The engine samples in its own precision and, if rollouts go on during training, from older weights. verl's rollout
correction compares its logprobs with the trainer's own before the step: ``w = p_trainer / p_engine``, truncated, per
token or per sequence; tokens or sequences out of bounds are left out. Sources: truncated importance sampling, Yao et
al., Your Efficient RL Framework Secretly Brings You Off-Policy RL Training (2025); verl, ``rollout_corr_helper``.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

from lightning_trainer.config.algorithms.algorithm import AlgorithmConfig
from lightning_trainer.training.update.batch.tensors import TokenValues
from lightning_trainer.types import Sample


class Correction(NamedTuple):
    """Importance weights, and which trained tokens were not rejected."""

    weights: TokenValues | None
    """By sample id, one per token; None if there is no importance sampling."""
    masks: Mapping[str, Sequence[int]]
    """By sample id, 1 for each trained token that was not rejected, else 0."""
    metrics: dict[str, float]
    """``rollout_corr/...``, by verl's names."""


def correct(samples: Sequence[Sample], old_log_probs: TokenValues, algorithm: AlgorithmConfig) -> Correction:
    """Compare engine and trainer over a whole batch. A sequence is a sample.

    Args:
        samples: each with at least one trained token.
        old_log_probs: the trainer's own, before the step.
    """
    longest = max(len(sample.token_ids) for sample in samples)

    def padded(rows: Sequence[Sequence[float]]) -> torch.Tensor:
        return torch.tensor([[*row, *[0.0] * (longest - len(row))] for row in rows])

    proto, mask_BL, metrics = compute_rollout_correction_and_rejection_mask(
        old_log_prob=padded([old_log_probs[sample.sample_id] for sample in samples]),
        rollout_log_prob=padded([sample.behavior_logprobs for sample in samples]),
        response_mask=padded([sample.loss_mask for sample in samples]),
        rollout_is=algorithm.rollout_is,
        rollout_is_threshold=algorithm.rollout_is_threshold,
        rollout_is_batch_normalize=algorithm.rollout_is_batch_normalize,
        rollout_rs=algorithm.rollout_rs,
        rollout_rs_threshold=algorithm.rollout_rs_threshold,
    )
    weights_BL = None if proto is None else proto.batch["rollout_is_weights"]
    return Correction(
        weights=None if weights_BL is None else _by_sample(samples, weights_BL.tolist()),
        masks=_by_sample(samples, mask_BL.int().tolist()),
        metrics=metrics,
    )


def _by_sample(samples: Sequence[Sample], rows: list[list]) -> dict[str, list]:
    return {sample.sample_id: row[: len(sample.token_ids)] for sample, row in zip(samples, rows, strict=True)}

"""How far the policy is from its reference at every sampled token, in nats: verl's estimators of the divergence."""

from collections.abc import Sequence
from typing import Any

import torch
from verl.trainer.ppo.core_algos import kl_penalty

from lightning_trainer.training.update.batch.tensors import TokenValues
from lightning_trainer.types import Sample

_estimate: Any = kl_penalty  # typed for a kind of tensor that nothing makes


def divergence(
    samples: Sequence[Sample], log_probs: TokenValues, ref_log_prob: TokenValues, estimator: str
) -> dict[str, list[float]]:
    """Return the estimate at every trained token, 0.0 elsewhere, by sample id.

    Args:
        log_probs: of the policy that sampled.
        estimator: verl's name (``k1``, ``k2``, ``k3`` ...); Schulman, Approximating KL Divergence (2020).
    """
    found = {}
    for sample in samples:
        ours, reference = (torch.tensor(values[sample.sample_id]) for values in (log_probs, ref_log_prob))
        estimate_L = _estimate(ours, reference, estimator) * torch.tensor(sample.loss_mask)
        found[sample.sample_id] = estimate_L.tolist()
    return found


def mean(samples: Sequence[Sample], values: TokenValues) -> float:
    """Return the mean over the trained tokens."""
    tokens = sum(sum(sample.loss_mask) for sample in samples)
    return sum(sum(values[sample.sample_id]) for sample in samples) / tokens

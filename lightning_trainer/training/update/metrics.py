"""verl's metrics as plain numbers, and means over tokens that do not depend on the split into micro-batches."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple, TypeAlias

import torch
from tensordict import TensorDict
from verl.trainer.ppo.core_algos import kl_penalty
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.padding import no_padding_2_padding

from lightning_trainer.training.update.batch.tensors import BEHAVIOR, TokenValues
from lightning_trainer.types import Sample

_log = logging.getLogger(__name__)

_ABOUT_GPUS = "perf/"
"""Prefix of verl's memory figures."""
_OF_UNMOVED_WEIGHTS = "mismatch/"
"""Prefix of metrics that compare trainer and engine: they do so only before the step's first update."""
_CLIPPED = "actor/pg_clipfrac"


Loss: TypeAlias = Callable[..., tuple[torch.Tensor, dict[str, Any]]]

_TOKEN_MEANS = (
    "actor/ppo_kl",
    "actor/pg_clipfrac",
    "actor/pg_clipfrac_lower",
    "critic/vf_clipfrac",
    "critic/vpred_mean",
)
"""Means over the tokens of a micro-batch, which verl then averages over micro-batches."""


class TokenWeighted:
    """A loss of verl's whose means over tokens are those of the whole batch, whatever its split.

    Micro-batches hold different numbers of tokens: each counts by its share of the batch's, and the shares add up.
    """

    def __init__(self, loss: Loss) -> None:
        self._loss = loss

    def __call__(self, model_output: Any, data: TensorDict, dp_group: Any = None) -> tuple[torch.Tensor, dict]:
        loss, metrics = self._loss(model_output=model_output, data=data, dp_group=dp_group)
        mask: Any = data["response_mask"]
        tokens = float(mask.values().sum())
        share = tokens * data["dp_size"] / data["batch_num_tokens"]
        for name in metrics.keys() & _TOKEN_MEANS:
            metrics[name] = Metric(AggregationType.SUM, _number(metrics[name]) * share)
        return loss, metrics


class Update(NamedTuple):
    """The outcome of one optimizer step, or of all that a step takes."""

    metrics: dict[str, float]
    """By verl's names; ``actor/update_skipped`` is 1.0 when the gradient was not finite and the weights were left."""
    tokens_computed: int


def of_step(updates: Sequence[Update]) -> Update:
    """Return the means over a step's updates, and what a mean would hide.

    ``grad_norm/max`` is the largest gradient; ``mismatch/...`` and ``actor/pg_clipfrac/unmoved`` are the first
    update's, which is computed with the weights that the batch was measured with.
    """
    first = updates[0].metrics
    names = {name for update in updates for name in update.metrics}
    metrics = {
        name: fmean(update.metrics[name] for update in updates if name in update.metrics)
        for name in names
        if not name.startswith(_OF_UNMOVED_WEIGHTS)
    }
    metrics |= {name: value for name, value in first.items() if name.startswith(_OF_UNMOVED_WEIGHTS)}
    if _CLIPPED in first:
        metrics[f"{_CLIPPED}/unmoved"] = first[_CLIPPED]
    norms = [update.metrics["grad_norm"] for update in updates if "grad_norm" in update.metrics]
    if norms:
        metrics["grad_norm/max"] = max(norms)
    return Update(metrics, sum(update.tokens_computed for update in updates))


def flat_metrics(metrics: Mapping[str, Any], model: str) -> dict[str, float]:
    """Return the metrics that are finite, as numbers, and ``{model}/update_skipped``."""
    flat = {name: _number(value) for name, value in metrics.items() if not name.startswith(_ABOUT_GPUS)}
    skipped = not math.isfinite(flat.get("grad_norm", 0.0))
    if skipped:
        _log.warning("the gradient is not finite: the weights were left as they are")
    finite = {name: value for name, value in flat.items() if math.isfinite(value)}
    return {**finite, f"{model}/update_skipped": float(skipped)}


def _number(value: Any) -> float:
    if isinstance(value, Metric):
        return float(value.aggregate())
    if isinstance(value, list) and isinstance(value[0], Metric):
        return float(Metric.aggregate_dp(value))  # one per process
    if isinstance(value, list):
        return sum(_number(item) for item in value) / len(value)
    return float(value)


# How far the trainer's log-probabilities are from the engine's on the tokens that the engine sampled.
#
# Measured inside of the loss, on what the update computes anyway. On fresh samples it is the two implementations'
# difference; on stale ones it also includes how far the weights have moved since.


class MeasuresMismatch:
    """A loss of verl's that also reports ``mismatch/abs_mean`` and ``mismatch/abs_max``, in nats per trained token."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss

    def __call__(self, model_output: Any, data: TensorDict, dp_group: Any = None) -> tuple[torch.Tensor, dict]:
        loss, metrics = self._loss(model_output=model_output, data=data, dp_group=dp_group)
        with torch.no_grad():
            trainer = no_padding_2_padding(model_output["log_probs"], data)
            padded = data.select("response_mask", BEHAVIOR).to_padded_tensor()
            mask = padded["response_mask"].bool()
            differences = (trainer - padded[BEHAVIOR]).abs()[mask]
        # Micro-batches hold different numbers of tokens: their sums over the batch's count add up to its mean.
        share = float(differences.sum()) * data["dp_size"] / data["batch_num_tokens"]
        metrics["mismatch/abs_mean"] = Metric(AggregationType.SUM, share)
        metrics["mismatch/abs_max"] = Metric(AggregationType.MAX, float(differences.max()) if len(differences) else 0.0)
        return loss, metrics


# How far the policy is from its reference at every sampled token, in nats: verl's estimators of the divergence.

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

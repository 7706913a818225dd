"""What losses need around verl's own: a correction before the step, factors for imitation, means over the whole batch.

**Off-policy correction**: the engine samples in its own precision and, if rollouts go on during training, from older
weights. verl's rollout correction compares its logprobs with the trainer's own before the step: ``w = p_trainer /
p_engine``, truncated, per token or per sequence; tokens or sequences out of bounds are left out. Sources: truncated
importance sampling, Yao et al., Your Efficient RL Framework Secretly Brings You Off-Policy RL Training (2025); verl,
``rollout_corr_helper``.

**Supervised fine-tuning and DPO** are factors of ``-A log p``: exact gradients, whatever micro-batch a sample falls
into. A pair's loss couples its two answers, and verl's micro-batches would have to keep them together. Its gradient
does not: it is that of ``-A log p`` with the factor that section 4 of arXiv 2305.18290 gives each answer, taken from
what is measured before the step. One optimizer step is taken on it, so the weights are the same and the gradient is
exact.

**Means over the whole batch**: ``geo_mean`` returns the mean over the sequences of a micro-batch, so that several of
them would add up to a multiple of the loss. ``bypass_mode`` refuses a micro-batch with nothing to train, such as a
process computes if others have more than it. Our versions are registered next to verl's under names of their own;
nothing of verl's is replaced.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import torch
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, get_policy_loss_fn, register_policy_loss
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

from lightning_trainer.config.algorithms.algorithm import AlgorithmConfig, DpoConfig
from lightning_trainer.errors import TrainingError
from lightning_trainer.training.update.batch.tensors import TokenValues
from lightning_trainer.training.update.estimation.advantages import Estimate
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


def demonstration_estimate(samples: Sequence[Sample]) -> Estimate:
    """Return the factor 1 at every shown token: the loss is their negative log-likelihood."""
    found = Estimate.empty(samples)
    for sample in samples:
        found.advantages[sample.sample_id] = [float(bit) for bit in sample.loss_mask]
    return found


def preference_estimate(
    samples: Sequence[Sample], log_probs: TokenValues, ref_log_prob: TokenValues, dpo: DpoConfig
) -> tuple[Estimate, dict[str, float]]:
    """Return the factors of DPO's gradient, to be summed over all tokens, and metrics of the pairs.

    With ``h`` the sum over an answer's tokens of ``log p - log p_ref`` (their mean if ``length_normalized``),
    ``m = h(chosen) - h(rejected)`` and label smoothing ``e``, a pair's loss is
    ``-(1 - e) log sigmoid(beta m) - e log sigmoid(-beta m)``, and the batch's the mean over its pairs.

    Args:
        samples: the segments of one group are a pair: chosen if their credit is above 0, else rejected.
        log_probs: of the policy, nats, as ``ref_log_prob`` is of the reference.

    Raises:
        TrainingError: a group lacks one of the two.
    """
    log_ratios: defaultdict[tuple[str, bool], float] = defaultdict(float)
    lengths: Counter[tuple[str, bool]] = Counter()
    for sample in samples:
        ours, reference = log_probs[sample.sample_id], ref_log_prob[sample.sample_id]
        for segment in sample.segments:
            side = (sample.group_id, (segment.credit or 0.0) > 0)
            run = sample.trained_in(segment)
            log_ratios[side] += math.fsum(ours[token] - reference[token] for token in run)
            lengths[side] += len(run)
    pairs = sorted({group_id for group_id, _ in lengths})
    for pair in pairs:
        if lacking := [name for name, chosen in (("chosen", True), ("rejected", False)) if not lengths[pair, chosen]]:
            raise TrainingError(f"the preference pair {pair} has no {lacking[0]} answer; a pair has both, leave it out")
    size = {side: length if dpo.length_normalized else 1 for side, length in lengths.items()}
    reward = {side: dpo.beta * log_ratios[side] / size[side] for side in lengths}
    margins = {pair: reward[pair, True] - reward[pair, False] for pair in pairs}
    found = Estimate.empty(samples)
    for sample in samples:
        factors = found.advantages[sample.sample_id]
        for segment in sample.segments:
            side = (sample.group_id, (segment.credit or 0.0) > 0)
            slope = dpo.beta * (_sigmoid(-margins[sample.group_id]) - dpo.label_smoothing) / size[side] / len(pairs)
            for token in sample.trained_in(segment):
                factors[token] = slope if side[1] else -slope
    return found, {
        "dpo/loss": fmean(_preference_loss(margin, dpo.label_smoothing) for margin in margins.values()),
        "dpo/accuracy": fmean(float(margin > 0) for margin in margins.values()),
        "dpo/margin": fmean(margins.values()),
        "dpo/reward_chosen": fmean(reward[pair, True] for pair in pairs),
        "dpo/reward_rejected": fmean(reward[pair, False] for pair in pairs),
    }


def _preference_loss(margin: float, smoothing: float) -> float:
    return -(1 - smoothing) * _log_sigmoid(margin) - smoothing * _log_sigmoid(-margin)


def _log_sigmoid(x: float) -> float:
    return min(x, 0.0) - math.log1p(math.exp(-abs(x)))


def _sigmoid(x: float) -> float:
    return math.exp(_log_sigmoid(x))


_PREFIX = "lightning_"


def over_the_batch(name: str) -> str:
    """Return the name under which the loss ``name`` is a mean over the batch, however it is split."""
    ours = f"{_PREFIX}{name}"
    return ours if ours in POLICY_LOSS_REGISTRY else name


@register_policy_loss(f"{_PREFIX}geo_mean")
def _geo_mean(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str,
    config: Any,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    loss, metrics = get_policy_loss_fn("geo_mean")(
        old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights
    )
    batch = config.global_batch_info
    return loss * (len(advantages) * batch["dp_size"] / batch["global_batch_size"]), metrics


@register_policy_loss(f"{_PREFIX}bypass_mode")
def _bypass_mode(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str,
    config: Any,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    theirs = get_policy_loss_fn("bypass_mode")
    if response_mask.any():
        return theirs(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights)
    # One token without a loss: each process must report as many values of each metric as the others.
    mask = torch.zeros_like(response_mask)
    mask[0, 0] = 1
    loss, metrics = theirs(
        log_prob.detach(), log_prob, torch.zeros_like(advantages), mask, loss_agg_mode, config, rollout_is_weights
    )
    return loss * 0.0, metrics

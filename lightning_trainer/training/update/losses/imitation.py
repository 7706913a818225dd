"""Supervised fine-tuning and DPO as factors of ``-A log p``: exact gradients, whatever micro-batch a sample falls into.

A pair's loss couples its two answers, and verl's micro-batches would have to keep them together. Its gradient does not:
it is that of ``-A log p`` with the factor that section 4 of arXiv 2305.18290 gives each answer, taken from what is
measured before the step. One optimiser step is taken on it, so the weights are the same and the gradient is exact.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import fmean

from lightning_trainer.config.algorithms.algorithm import DpoConfig
from lightning_trainer.errors import TrainingError
from lightning_trainer.training.update.batch.tensors import TokenValues
from lightning_trainer.training.update.estimation.estimate import Estimate
from lightning_trainer.types import Sample


def demonstration_estimate(samples: Sequence[Sample]) -> Estimate:
    """Return the factor 1 at every shown token: the loss is their negative log-likelihood."""
    found = Estimate.empty(samples)
    for sample in samples:
        found.advantages[sample.sample_id] = [float(bit) for bit in sample.loss_mask]
    return found


def preference_estimate(
    samples: Sequence[Sample], log_probs: TokenValues, ref_log_prob: TokenValues, dpo: DpoConfig
) -> tuple[Estimate, dict[str, float]]:
    """Return the factors of DPO's gradient, to be summed over all tokens, and what there is to say of the pairs.

    With ``h`` the sum over an answer's tokens of ``log p - log p_ref`` (their mean where ``length_normalized``),
    ``m = h(chosen) - h(rejected)`` and label smoothing ``e``, a pair's loss is
    ``-(1 - e) log sigmoid(beta m) - e log sigmoid(-beta m)``, and the batch's the mean over its pairs.

    Args:
        samples: the segments of one group are a pair: chosen where their credit is above 0, else rejected.
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
        "dpo/loss": fmean(_loss(margin, dpo.label_smoothing) for margin in margins.values()),
        "dpo/accuracy": fmean(float(margin > 0) for margin in margins.values()),
        "dpo/margin": fmean(margins.values()),
        "dpo/reward_chosen": fmean(reward[pair, True] for pair in pairs),
        "dpo/reward_rejected": fmean(reward[pair, False] for pair in pairs),
    }


def _loss(margin: float, smoothing: float) -> float:
    return -(1 - smoothing) * _log_sigmoid(margin) - smoothing * _log_sigmoid(-margin)


def _log_sigmoid(x: float) -> float:
    return min(x, 0.0) - math.log1p(math.exp(-abs(x)))


def _sigmoid(x: float) -> float:
    return math.exp(_log_sigmoid(x))

"""verl's policy losses: the formula, where it comes from, and which settings each reads.

The contract is in this one place and does not import torch. The formulas and the names stay verl's
(``verl.trainer.ppo.core_algos``, 0.9.1); ``benchmarks/algorithms`` compares each with plain PyTorch. In the formulas,
``r`` is the ratio of the present policy to the old one at a token, ``A`` the advantage, and ``sg`` stops gradients. A
sequence is a sample: the turns of an attempt that extend each other token for token form one. While ``r`` is 1, as in
the first update of a step on fresh samples, all losses except two have the gradient of ``-A log p``; from the second
update on, they differ.
"""

from collections.abc import Mapping
from dataclasses import dataclass

_CLIP = ("clip_ratio_low", "clip_ratio_high")


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A policy loss of verl: its formula, its source, and the settings that it depends on."""

    formula: str
    source: str
    reads: tuple[str, ...] = ()
    """Settings of ``[policy.algorithm]`` that only some losses read."""
    per_micro_batch: bool = False
    """Whether it ranks or centers the tokens of a micro-batch, so that the split into micro-batches has an effect."""
    aggregation: str | None = None
    """The only ``loss_agg_mode`` that it supports."""
    differs_at_one: bool = False
    """Whether its gradient differs from that of ``-A log p`` even if every ratio is 1."""


POLICY_LOSSES: Mapping[str, PolicyLoss] = {
    "vanilla": PolicyLoss(
        "max(-A r, -A clip(r)), at most -A c where A < 0",
        "PPO, arXiv 1707.06347, equation 7; dual clip, arXiv 1912.09729",
        (*_CLIP, "clip_ratio_c"),
    ),
    "gspo": PolicyLoss(
        "as vanilla with the sequence's geometric mean ratio for r, no dual clip", "arXiv 2507.18071", _CLIP
    ),
    "cispo": PolicyLoss("-sg(clip(r)) A log p", "MiniMax-M1, arXiv 2506.13585, equation 4", _CLIP),
    "gpg": PolicyLoss("-A log p", "REINFORCE, Williams 1992; arXiv 2504.02546"),
    "geo_mean": PolicyLoss(
        "-mean(A) exp(mean(clipped log r)) of each sequence", "GMPO, arXiv 2507.20673", _CLIP, aggregation="seq-mean"
    ),
    "sapo": PolicyLoss(
        "-A 4/tau sigmoid(tau (r - 1))",
        "arXiv 2511.20347",
        ("tau_pos", "tau_neg"),
        aggregation="seq-mean-token-mean",
    ),
    "clip_cov": PolicyLoss(
        "as vanilla without dual clip; some tokens of high covariance, drawn at random, are left out",
        "arXiv 2505.22617",
        (*_CLIP, "clip_cov_ratio", "clip_cov_lb", "clip_cov_ub"),
        per_micro_batch=True,
        differs_at_one=True,
    ),
    "kl_cov": PolicyLoss(
        "-A r, plus ppo_kl_coef |log r| on the tokens of highest covariance",
        "arXiv 2505.22617",
        ("kl_cov_ratio", "ppo_kl_coef"),
        per_micro_batch=True,
        differs_at_one=True,
    ),
    "dppo_tv": PolicyLoss(
        "-A sg(min(r, c)) log p where |p - p_old| is within bounds", "arXiv 2602.04879", (*_CLIP, "clip_ratio_c")
    ),
    "dppo_kl": PolicyLoss(
        "-A sg(min(r, c)) log p where the binary KL is within bounds", "arXiv 2602.04879", (*_CLIP, "clip_ratio_c")
    ),
    "dro": PolicyLoss("-(A log p - dro_beta / 2 (log r)^2)", "arXiv 2405.19107", ("dro_beta",)),
    "bypass_mode": PolicyLoss(
        "vanilla or REINFORCE against the engine's own logprobs, with rejection, and REINFORCE with weights, inside",
        "verl",
        (*_CLIP, "bypass_loss", "rollout_is", "rollout_rs"),
        per_micro_batch=True,
    ),
}

"""The policy losses as their papers write them, one sequence after the other, in plain PyTorch.

Nothing here comes from verl or from the project. A sequence is a list of vectors over its trained tokens: ``log_p`` of
the present policy (with its graph), ``old`` of the old one, ``advantage`` and, if a divergence is asked for,
``reference``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from benchmarks.algorithms.papers import Formula


@dataclass(slots=True)
class Tokens:
    """The trained tokens of one sequence."""

    log_p: torch.Tensor
    old: torch.Tensor
    advantage: torch.Tensor
    entropy: torch.Tensor
    reference: torch.Tensor | None = None
    weight: torch.Tensor | None = None
    """Weights of the importance sampling between engine and trainer."""

    @property
    def ratio(self) -> torch.Tensor:
        return (self.log_p - self.old).exp()


def total_loss(sequences: Sequence[Tokens], formula: Formula, scale: float) -> tuple[torch.Tensor, float]:
    """Return the loss that is minimized, and its policy term alone.

    Args:
        scale: the divisor of ``seq-mean-token-sum-norm``.
    """
    policy = policy_loss(sequences, formula, scale)
    loss = policy
    if formula.entropy_coeff:
        entropy = aggregate([tokens.entropy for tokens in sequences], formula.loss_agg_mode, scale)
        loss = loss - formula.entropy_coeff * entropy
    if formula.kl_loss_coef:
        nats = [_divergence(tokens, formula.kl_loss_type) for tokens in sequences]
        loss = loss + formula.kl_loss_coef * aggregate(nats, formula.loss_agg_mode, scale)
    return loss, policy.item()


def aggregate(rows: Sequence[torch.Tensor], mode: str, scale: float) -> torch.Tensor:
    sums, lengths = [row.sum() for row in rows], [len(row) for row in rows]
    if mode == "token-mean":
        return sum(sums[1:], sums[0]) / sum(lengths)
    if mode == "token-sum":
        return sum(sums[1:], sums[0])
    if mode == "seq-mean-token-mean":
        return torch.stack([row.mean() for row in rows]).mean()
    mean = torch.stack(sums).mean()
    return mean / scale if mode == "seq-mean-token-sum-norm" else mean


def policy_loss(sequences: Sequence[Tokens], formula: Formula, scale: float) -> torch.Tensor:
    name, mode = formula.policy_loss, formula.loss_agg_mode
    if name == "geo_mean":
        return torch.stack([_geo_mean(tokens, formula) for tokens in sequences]).mean()
    if name in _OVER_ALL:
        rows = _OVER_ALL[name](sequences, formula)
    else:
        rows = [_BY_SEQUENCE[name](tokens, formula) for tokens in sequences]
    if name != "bypass_mode":
        weights = [1.0 if tokens.weight is None else tokens.weight for tokens in sequences]
        rows = [row * weight for row, weight in zip(rows, weights, strict=True)]
    return aggregate(rows, "seq-mean-token-mean" if name == "sapo" else mode, scale)


def _clipped(ratio: torch.Tensor, formula: Formula) -> torch.Tensor:
    return ratio.clamp(1 - formula.clip_ratio_low, 1 + formula.clip_ratio_high)


def _pessimistic(ratio: torch.Tensor, advantage: torch.Tensor, formula: Formula) -> torch.Tensor:
    """PPO, equation 7, as a loss."""
    return -torch.minimum(ratio * advantage, _clipped(ratio, formula) * advantage)


def _vanilla(tokens: Tokens, formula: Formula) -> torch.Tensor:
    loss = _pessimistic(tokens.ratio, tokens.advantage, formula)
    bound = -tokens.advantage * formula.clip_ratio_c
    return torch.where((tokens.advantage < 0) & (loss > bound), bound, loss)


def _gspo(tokens: Tokens, formula: Formula) -> torch.Tensor:
    """GSPO-token, equations 14 to 16: the sequence's ratio, with the gradient of each token's own."""
    of_sequence = (tokens.log_p - tokens.old).mean().detach()
    ratio = (of_sequence + tokens.log_p - tokens.log_p.detach()).exp()
    return _pessimistic(ratio, tokens.advantage, formula)


def _cispo(tokens: Tokens, formula: Formula) -> torch.Tensor:
    return -_clipped(tokens.ratio, formula).detach() * tokens.advantage * tokens.log_p


def _reinforce(tokens: Tokens, formula: Formula) -> torch.Tensor:
    return -tokens.advantage * tokens.log_p


def _sapo(tokens: Tokens, formula: Formula) -> torch.Tensor:
    positive = tokens.advantage > 0
    tau = torch.where(positive, torch.tensor(formula.tau_pos), torch.tensor(formula.tau_neg))
    return -(4 / tau) * torch.sigmoid(tau * (tokens.ratio - 1)) * tokens.advantage


def _dro(tokens: Tokens, formula: Formula) -> torch.Tensor:
    return -tokens.log_p * tokens.advantage + formula.dro_beta / 2 * (tokens.log_p - tokens.old) ** 2


def _dppo(tokens: Tokens, formula: Formula, distance: torch.Tensor) -> torch.Tensor:
    """Return the loss; tokens that have moved too far, and would be moved further, have no gradient."""
    moved_up = tokens.log_p > tokens.old
    pushed_up = tokens.advantage > 0
    allowed = torch.where(pushed_up, formula.clip_ratio_high, formula.clip_ratio_low)
    stopped = (moved_up == pushed_up) & (distance > allowed)
    weight = tokens.ratio.clamp(max=formula.clip_ratio_c).detach()
    return torch.where(stopped, 0.0, -tokens.advantage * weight * tokens.log_p)


def _dppo_tv(tokens: Tokens, formula: Formula) -> torch.Tensor:
    return _dppo(tokens, formula, (tokens.log_p.exp() - tokens.old.exp()).abs())


def _dppo_kl(tokens: Tokens, formula: Formula) -> torch.Tensor:
    q, p = tokens.old.exp(), tokens.log_p.exp()
    return _dppo(tokens, formula, q * (q / p).log() + (1 - q) * ((1 - q) / (1 - p)).log())


def _geo_mean(tokens: Tokens, formula: Formula) -> torch.Tensor:
    sign = tokens.advantage.sign()
    log_ratio = sign * (tokens.log_p - tokens.old)
    bounded = sign * (tokens.log_p - tokens.old).clamp(-formula.clip_ratio_low, formula.clip_ratio_high)
    return -tokens.advantage.mean() * (sign * torch.minimum(log_ratio, bounded)).mean().exp()


def _covariances(sequences: Sequence[Tokens]) -> torch.Tensor:
    """Return covariances of advantage and log-probability, centered over all tokens (arXiv 2505.22617, equation 9)."""
    advantage = torch.cat([tokens.advantage for tokens in sequences])
    log_p = torch.cat([tokens.log_p.detach() for tokens in sequences])
    return (advantage - advantage.mean()) * (log_p - log_p.mean())


def _split(flat: torch.Tensor, sequences: Sequence[Tokens]) -> list[torch.Tensor]:
    return list(flat.split([len(tokens.log_p) for tokens in sequences]))


def _clip_cov(sequences: Sequence[Tokens], formula: Formula) -> list[torch.Tensor]:
    """With ``clip_cov_ratio = 1`` every candidate is left out, so nothing is left to chance."""
    assert formula.clip_cov_ratio == 1.0
    covariance = _covariances(sequences)
    ratio = torch.cat([tokens.ratio for tokens in sequences])
    advantage = torch.cat([tokens.advantage for tokens in sequences])
    loss = _pessimistic(ratio, advantage, formula)
    clipped = loss > -advantage * ratio
    left_out = ~clipped & (covariance > formula.clip_cov_lb) & (covariance < formula.clip_cov_ub)
    return _split(torch.where(left_out, 0.0, loss), sequences)


def _kl_cov(sequences: Sequence[Tokens], formula: Formula) -> list[torch.Tensor]:
    covariance = _covariances(sequences)
    ranked = covariance.argsort(descending=True)[: max(1, int(len(covariance) * formula.kl_cov_ratio))]
    chosen = torch.zeros_like(covariance).index_fill(0, ranked, formula.ppo_kl_coef)
    flat = torch.cat([-tokens.advantage * tokens.ratio for tokens in sequences])
    distance = torch.cat([(tokens.log_p - tokens.old).abs() for tokens in sequences])
    return _split(flat + chosen * distance, sequences)


def _bypass(sequences: Sequence[Tokens], formula: Formula) -> list[torch.Tensor]:
    """The old log-probabilities are the engine's. Rejection is by token (``token_k1``), weights are truncated."""
    rows = []
    for tokens in sequences:
        row = _vanilla(tokens, formula)
        if formula.bypass_loss == "reinforce":
            row = _reinforce(tokens, formula)
            if formula.rollout_is is not None:
                row = row * importance(tokens.log_p.detach() - tokens.old, formula)
        if formula.rollout_rs is not None:
            row = row * accepted(tokens.log_p.detach() - tokens.old, formula)
        rows.append(row)
    return rows


def importance(log_ratio: torch.Tensor, formula: Formula) -> torch.Tensor:
    """Return the truncated weights of one sequence: each token's own, or that of their product."""
    if formula.rollout_is == "sequence":
        log_ratio = log_ratio.sum().expand_as(log_ratio)
    return log_ratio.exp().clamp(max=float(formula.rollout_is_threshold))


def accepted(log_ratio: torch.Tensor, formula: Formula) -> torch.Tensor:
    """Return 1 for tokens that are kept: engine / trainer, or the sequence's geometric mean of it, is within bounds."""
    if formula.rollout_rs == "seq_mean_k1":
        log_ratio = log_ratio.mean().expand_as(log_ratio)
    bounds = [float(part) for part in str(formula.rollout_rs_threshold).split("_")]
    lower, upper = bounds if len(bounds) == 2 else (1 / bounds[0], bounds[0])
    return ((-log_ratio).exp() >= lower).float() * ((-log_ratio).exp() <= upper).float()


def _divergence(tokens: Tokens, estimator: str) -> torch.Tensor:
    """Schulman's estimators; ``+`` has the gradient of k2."""
    assert tokens.reference is not None
    log_ratio = tokens.log_p - tokens.reference
    k2 = log_ratio**2 / 2
    k3 = (-log_ratio).exp() - 1 + log_ratio
    plain = {"k1": log_ratio, "k2": k2, "k3": k3, "low_var_kl": k3, "abs": log_ratio.abs()}
    if estimator in plain:
        return plain[estimator]
    return plain[estimator.removesuffix("+")].detach() + k2 - k2.detach()


_BY_SEQUENCE: Mapping[str, Callable[[Tokens, Formula], torch.Tensor]] = {
    "vanilla": _vanilla,
    "gspo": _gspo,
    "cispo": _cispo,
    "gpg": _reinforce,
    "sapo": _sapo,
    "dro": _dro,
    "dppo_tv": _dppo_tv,
    "dppo_kl": _dppo_kl,
}
_OVER_ALL: Mapping[str, Callable[[Sequence[Tokens], Formula], list[torch.Tensor]]] = {
    "clip_cov": _clip_cov,
    "kl_cov": _kl_cov,
    "bypass_mode": _bypass,
}

"""The same step in plain PyTorch and transformers: one sequence after the other, no trie, no verl."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from algorithms_parts import estimators, imitation, losses
from lightning_trainer.credit.gae_bilevel import bilevel_gae
from lightning_trainer.credit.gae_tokens import token_gae
from lightning_trainer.credit.gae_turns import turn_gae
from lightning_trainer.credit.settings import CreditSettings, GaeBilevelCredit, GaeTokensCredit
from lightning_trainer.training.algorithms.settings import AlgorithmConfig
from lightning_trainer.types import Sample


@dataclass(slots=True)
class Step:
    loss: float
    policy_loss: float
    advantages: dict[str, torch.Tensor]
    """By sample id, of the trained tokens."""
    gradients: dict[str, torch.Tensor]
    value_loss: float | None = None
    value_gradients: dict[str, torch.Tensor] | None = None


def score(model: Any, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
    """Return the log-probability of every token but the first."""
    with torch.no_grad():
        return [_log_p(model, ids)[0].tolist() for ids in sequences]


def step(
    policy_dir: Path,
    reference_dir: Path,
    critic: Any,
    samples: Sequence[Sample],
    algorithm: AlgorithmConfig,
    value_credit: CreditSettings | None,
    horizon: int,
) -> Step:
    """Work out one step by the formulas.

    Args:
        critic: a value model of transformers with the weights of before the step; None where there is none.
    """
    policy, reference = _load(policy_dir), _load(reference_dir)
    sequences, energies = [], []
    for sample in samples:
        trained = _trained(sample)
        log_p, entropy, squares = (vector[trained - 1] for vector in _log_p(policy, sample.token_ids))
        with torch.no_grad():
            of_reference = _log_p(reference, sample.token_ids)[0][trained - 1]
        behaviour = torch.tensor(sample.behaviour_logprobs)[trained]
        energies.append((1 - 2 * log_p.exp() + squares).detach())
        old = log_p.detach() if algorithm.recomputes_old_logprobs else behaviour
        sequences.append(losses.Tokens(log_p, old, torch.empty(0), entropy, of_reference))
    if algorithm.objective != "rl":
        return _imitated(policy, samples, sequences, algorithm, float(horizon))
    values = None if critic is None else [_values(critic, sample) for sample in samples]
    penalties = [_penalty(tokens, sample, algorithm) for tokens, sample in zip(sequences, samples, strict=True)]
    advantages, targets = _advantages(samples, penalties, energies, values, algorithm, value_credit)
    for tokens, advantage, sample in zip(sequences, advantages, samples, strict=True):
        tokens.advantage = advantage
        if algorithm.corrects_rollouts:
            _correct(tokens, sample, algorithm)
    kept = [_without_rejected(tokens, sample, algorithm) for tokens, sample in zip(sequences, samples, strict=True)]
    loss, policy_loss = losses.total_loss(
        [tokens for tokens in kept if len(tokens.log_p)], algorithm, float(algorithm.loss_scale_factor or horizon)
    )
    policy.zero_grad()
    loss.backward()
    found = Step(
        loss=loss.item(),
        policy_loss=policy_loss,
        advantages={sample.sample_id: advantage for sample, advantage in zip(samples, advantages, strict=True)},
        gradients=_gradients(policy),
    )
    if values is not None:
        _learn_values(found, critic, values, targets)
    return found


def _imitated(
    policy: Any, samples: Sequence[Sample], sequences: list[losses.Tokens], algorithm: AlgorithmConfig, scale: float
) -> Step:
    """The loss as it is written. What a token counts in it, ``A`` in ``-A log p``, is its derivative."""
    if algorithm.objective == "sft":
        loss = losses.aggregate([-tokens.log_p for tokens in sequences], algorithm.loss_agg_mode, scale)
        factors = [torch.ones_like(tokens.log_p) for tokens in sequences]
    else:
        loss = imitation.preference_loss(sequences, samples, algorithm.dpo)
        slopes = torch.autograd.grad(loss, [tokens.log_p for tokens in sequences], retain_graph=True)
        factors = [-slope for slope in slopes]
    policy.zero_grad()
    loss.backward()
    advantages = {sample.sample_id: factor for sample, factor in zip(samples, factors, strict=True)}
    return Step(loss.item(), loss.item(), advantages, _gradients(policy))


def _load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def _gradients(model: Any) -> dict[str, torch.Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def _trained(sample: Sample) -> torch.Tensor:
    return torch.tensor(sample.loss_mask).nonzero()[:, 0]


def _log_p(model: Any, ids: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of the distributions after each token but the last: log p of the next token, entropy, sum of squares."""
    everything = model(torch.tensor([list(ids)])).logits[0, :-1].log_softmax(-1)
    chosen = everything.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    return chosen, -(everything.exp() * everything).sum(-1), everything.exp().square().sum(-1)


def _values(critic: Any, sample: Sample) -> torch.Tensor:
    """Before each trained token: the head's output at the token before it."""
    return critic(torch.tensor([list(sample.token_ids)])).logits[0, :, 0][_trained(sample) - 1]


def _penalty(tokens: losses.Tokens, sample: Sample, algorithm: AlgorithmConfig) -> torch.Tensor:
    assert tokens.reference is not None
    log_ratio = torch.tensor(sample.behaviour_logprobs)[_trained(sample)] - tokens.reference
    found = {
        "k1": log_ratio,
        "k2": log_ratio**2 / 2,
        "k3": (-log_ratio).exp() - 1 + log_ratio,
        "abs": log_ratio.abs(),
    }
    return algorithm.kl_reward_coef * found[algorithm.kl_reward_type]


def _advantages(
    samples: Sequence[Sample],
    penalties: Sequence[torch.Tensor],
    energies: Sequence[torch.Tensor],
    values: Sequence[torch.Tensor] | None,
    algorithm: AlgorithmConfig,
    value_credit: CreditSettings | None,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Advantages, and what the critic should have said (NaN where nothing is learned)."""
    detached = None if values is None else [vector.detach() for vector in values]
    if value_credit is not None:
        assert detached is not None
        pairs = [_by_scheme(sample, vector, value_credit) for sample, vector in zip(samples, detached, strict=True)]
        return [advantages for advantages, _ in pairs], [targets for _, targets in pairs]
    rows = []
    for index, (sample, penalty) in enumerate(zip(samples, penalties, strict=True)):
        credit = sample.segments[-1].credit
        assert credit is not None
        rewards = torch.zeros(len(penalty)).index_fill(0, torch.tensor([len(penalty) - 1]), credit) - penalty
        assert sample.baseline is not None
        values_T = None if detached is None else detached[index]
        rows.append(estimators.Row(sample.group_id, rewards, sample.baseline, values_T, energies[index]))
    found = estimators.advantages(rows, algorithm.advantage, algorithm)
    if detached is None:
        return found, []
    return found, [estimators.gae(row, algorithm) + vector for row, vector in zip(rows, detached, strict=True)]


def _by_scheme(sample: Sample, values: torch.Tensor, scheme: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The schemes' own functions, which their unit tests check by hand, over the calls of one attempt."""
    lengths = [segment.end - segment.start for segment in sample.segments]
    rewards_K = [segment.credit or 0.0 for segment in sample.segments]
    values_KL = [vector.tolist() for vector in values.split(lengths)]
    if isinstance(scheme, GaeTokensCredit):
        rewards_L = [0.0] * sum(lengths)
        for number, reward in enumerate(rewards_K):
            rewards_L[sum(lengths[: number + 1]) - 1] = reward
        found = token_gae(rewards_L, values.tolist(), [1] * len(values), gamma=scheme.gamma, lam=scheme.lam)
        return torch.tensor(found), torch.tensor(found) + values
    if isinstance(scheme, GaeBilevelCredit):
        settings = scheme.model_dump(exclude={"scheme"})
        found = torch.tensor(list(chain.from_iterable(bilevel_gae(rewards_K, values_KL, **settings))))
        return found, found + values
    parents = [None, *range(len(lengths) - 1)]
    found_K = turn_gae(parents, rewards_K, [own[0] for own in values_KL], gamma=scheme.gamma, lam=scheme.lam)
    spread = torch.tensor(found_K).repeat_interleave(torch.tensor(lengths))
    first = torch.cat([torch.arange(length) == 0 for length in lengths])
    return spread, torch.where(first, spread + values, torch.nan)


def _correct(tokens: losses.Tokens, sample: Sample, algorithm: AlgorithmConfig) -> None:
    log_ratio = tokens.old - torch.tensor(sample.behaviour_logprobs)[_trained(sample)]
    if algorithm.rollout_is is not None:
        tokens.weight = losses.importance(log_ratio, algorithm)


def _without_rejected(tokens: losses.Tokens, sample: Sample, algorithm: AlgorithmConfig) -> losses.Tokens:
    if not algorithm.corrects_rollouts or algorithm.rollout_rs is None:
        return tokens
    log_ratio = tokens.old - torch.tensor(sample.behaviour_logprobs)[_trained(sample)]
    keep = losses.accepted(log_ratio, algorithm).bool()
    return losses.Tokens(tokens.log_p[keep], tokens.old[keep], tokens.advantage[keep], tokens.entropy[keep])


def _learn_values(found: Step, critic: Any, values: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    """Half the mean squared error; on the first step no value has moved, so nothing is clipped."""
    said, target = torch.cat(list(values)), torch.cat(list(targets))
    learned = ~target.isnan()
    loss = (said[learned] - target[learned]).square().mean() / 2
    critic.zero_grad()
    loss.backward()
    found.value_loss, found.value_gradients = loss.item(), _gradients(critic)

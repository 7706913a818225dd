"""The same step in plain PyTorch and transformers: one sequence after the other, no trie, no verl.

Only the samples, which are what is trained on, come from the project.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.algorithms import estimators, imitation, losses, value_schemes
from benchmarks.algorithms.papers import Formula, ValueCredit
from benchmarks.algorithms.value_schemes import Gae
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
    """Return the log-probability of every token except the first."""
    with torch.no_grad():
        return [_log_p(model, ids)[0].tolist() for ids in sequences]


def step(
    policy_dir: Path,
    reference_dir: Path,
    critic: Any,
    samples: Sequence[Sample],
    formula: Formula,
    value_credit: ValueCredit | None,
    horizon: int,
    gae: Gae = value_schemes.gae_sum,
    given: Mapping[str, float] | None = None,
) -> Step:
    """Compute one step by the formulas.

    Args:
        critic: a value model of transformers with the weights from before the step; None if there is none.
        horizon: tokens; the divisor of ``seq-mean-token-sum-norm``.
        gae: how advantages are estimated from a critic's values: the paper's sum, or another library's function.
        given: advantages by sample id that another library computed; None: the formula's are used.
    """
    policy, reference = _load(policy_dir), _load(reference_dir)
    sequences, energies = [], []
    for sample in samples:
        trained = _trained(sample)
        log_p, entropy, squares = (vector[trained - 1] for vector in _log_p(policy, sample.token_ids))
        with torch.no_grad():
            of_reference = _log_p(reference, sample.token_ids)[0][trained - 1]
        behavior = torch.tensor(sample.behavior_logprobs)[trained]
        energies.append((1 - 2 * log_p.exp() + squares).detach())
        old = log_p.detach() if formula.old_is_of_the_trainer else behavior
        sequences.append(losses.Tokens(log_p, old, torch.empty(0), entropy, of_reference))
    if formula.objective != "rl":
        return _imitated(policy, samples, sequences, formula, float(horizon))
    values = None if critic is None else [_values(critic, sample) for sample in samples]
    penalties = [_penalty(tokens, sample, formula) for tokens, sample in zip(sequences, samples, strict=True)]
    advantages, targets = _advantages(samples, penalties, energies, values, formula, value_credit, gae)
    if given is not None:
        pairs = zip(samples, advantages, strict=True)
        advantages = [torch.full_like(own, given[sample.sample_id]) for sample, own in pairs]
    for tokens, advantage, sample in zip(sequences, advantages, samples, strict=True):
        tokens.advantage = advantage
        if formula.corrects_rollouts:
            _correct(tokens, sample, formula)
    kept = [_without_rejected(tokens, sample, formula) for tokens, sample in zip(sequences, samples, strict=True)]
    loss, policy_loss = losses.total_loss([tokens for tokens in kept if len(tokens.log_p)], formula, float(horizon))
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
    policy: Any, samples: Sequence[Sample], sequences: list[losses.Tokens], formula: Formula, scale: float
) -> Step:
    """Compute the loss as written. A token's ``A``, as in ``-A log p``, is 1 or the loss's negative derivative."""
    if formula.objective == "sft":
        loss = losses.aggregate([-tokens.log_p for tokens in sequences], formula.loss_agg_mode, scale)
        factors = [torch.ones_like(tokens.log_p) for tokens in sequences]
    else:
        loss = imitation.preference_loss(sequences, samples, formula)
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
    """Return log p of the next token, entropy, and sum of squares, after each token except the last."""
    everything = model(torch.tensor([list(ids)])).logits[0, :-1].log_softmax(-1)
    chosen = everything.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    return chosen, -(everything.exp() * everything).sum(-1), everything.exp().square().sum(-1)


def _values(critic: Any, sample: Sample) -> torch.Tensor:
    """Return the value before each trained token: the head's output at the token before it."""
    return critic(torch.tensor([list(sample.token_ids)])).logits[0, :, 0][_trained(sample) - 1]


def _penalty(tokens: losses.Tokens, sample: Sample, formula: Formula) -> torch.Tensor:
    assert tokens.reference is not None
    log_ratio = torch.tensor(sample.behavior_logprobs)[_trained(sample)] - tokens.reference
    found = {
        "k1": log_ratio,
        "k2": log_ratio**2 / 2,
        "k3": (-log_ratio).exp() - 1 + log_ratio,
        "abs": log_ratio.abs(),
    }
    return formula.kl_reward_coef * found[formula.kl_reward_type]


def _advantages(
    samples: Sequence[Sample],
    penalties: Sequence[torch.Tensor],
    energies: Sequence[torch.Tensor],
    values: Sequence[torch.Tensor] | None,
    formula: Formula,
    value_credit: ValueCredit | None,
    gae: Gae,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return advantages, and what the critic should have said (NaN where nothing is learned)."""
    detached = None if values is None else [vector.detach() for vector in values]
    if value_credit is not None:
        assert detached is not None
        pairs = [
            _by_scheme(sample, vector, value_credit, gae) for sample, vector in zip(samples, detached, strict=True)
        ]
        return [advantages for advantages, _ in pairs], [targets for _, targets in pairs]
    rows = []
    for index, (sample, penalty) in enumerate(zip(samples, penalties, strict=True)):
        credit = sample.segments[-1].credit
        assert credit is not None
        rewards = torch.zeros(len(penalty)).index_fill(0, torch.tensor([len(penalty) - 1]), credit) - penalty
        assert sample.baseline is not None
        values_T = None if detached is None else detached[index]
        rows.append(estimators.Row(sample.group_id, rewards, sample.baseline, values_T, energies[index]))
    found = estimators.advantages(rows, formula, gae)
    if detached is None:
        return found, []
    pairs = zip(rows, detached, strict=True)
    return found, [estimators.of_values(row, formula, gae) + vector for row, vector in pairs]


def _by_scheme(
    sample: Sample, values: torch.Tensor, credit: ValueCredit, gae: Gae
) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply a credit scheme to a sample's calls, which follow each other; each call's credit is its reward."""
    lengths = [segment.end - segment.start for segment in sample.segments]
    rewards_K = torch.tensor([segment.credit for segment in sample.segments])
    return value_schemes.by_scheme(rewards_K, values.split(lengths), credit, gae)


def _correct(tokens: losses.Tokens, sample: Sample, formula: Formula) -> None:
    log_ratio = tokens.old - torch.tensor(sample.behavior_logprobs)[_trained(sample)]
    if formula.rollout_is is not None:
        tokens.weight = losses.importance(log_ratio, formula)


def _without_rejected(tokens: losses.Tokens, sample: Sample, formula: Formula) -> losses.Tokens:
    if not formula.corrects_rollouts or formula.rollout_rs is None:
        return tokens
    log_ratio = tokens.old - torch.tensor(sample.behavior_logprobs)[_trained(sample)]
    keep = losses.accepted(log_ratio, formula).bool()
    return losses.Tokens(tokens.log_p[keep], tokens.old[keep], tokens.advantage[keep], tokens.entropy[keep])


def _learn_values(found: Step, critic: Any, values: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    """Add the value loss, half the mean squared error; on the first step no value has moved, so nothing is clipped."""
    said, target = torch.cat(list(values)), torch.cat(list(targets))
    learned = ~target.isnan()
    loss = (said[learned] - target[learned]).square().mean() / 2
    critic.zero_grad()
    loss.backward()
    found.value_loss, found.value_gradients = loss.item(), _gradients(critic)

"""Credit with a critic as the papers write it, over the calls of one attempt that follow each other.

Every function is given the advantage estimation it builds on: the sum of its paper, or another library's.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from benchmarks.algorithms.papers import ValueCredit

Gae: TypeAlias = Callable[[torch.Tensor, torch.Tensor, float, float], torch.Tensor]
"""A function of rewards, the values before them, gamma, and lambda; nothing comes after the last reward."""


def gae_sum(rewards: torch.Tensor, values: torch.Tensor, gamma: float, lam: float) -> torch.Tensor:
    """Schulman et al., arXiv 1506.02438, equation 16, before whitening: each advantage a sum of its own."""
    following = torch.cat([values[1:], torch.zeros(1)])
    deltas = rewards + gamma * following - values
    found = torch.zeros_like(deltas)
    for t in range(len(deltas)):
        powers = (gamma * lam) ** torch.arange(len(deltas) - t)
        found[t] = (powers * deltas[t:]).sum()
    return found


def by_scheme(
    rewards_K: torch.Tensor, values_KL: Sequence[torch.Tensor], credit: ValueCredit, gae: Gae
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return, for the sampled tokens of all calls, advantages and what the critic should have said (NaN: nothing).

    Args:
        rewards_K: the reward of each call.
        values_KL: the critic's values, before each sampled token of each call.
    """
    return _SCHEMES[credit.scheme](rewards_K, values_KL, credit, gae)


def _turns(
    rewards_K: torch.Tensor, values_KL: Sequence[torch.Tensor], credit: ValueCredit, gae: Gae
) -> tuple[torch.Tensor, torch.Tensor]:
    """ArCHer, arXiv 2402.19446: a call is a time step, and its state is its prompt."""
    states_K = torch.stack([values_L[0] for values_L in values_KL])
    found_K = gae(rewards_K, states_K, credit.gamma, credit.lam)
    advantages, targets = [], []
    for advantage, state, values_L in zip(found_K, states_K, values_KL, strict=True):
        advantages.append(advantage.expand(len(values_L)))
        targets.append(torch.cat([(advantage + state)[None], torch.full((len(values_L) - 1,), torch.nan)]))
    return torch.cat(advantages), torch.cat(targets)


def _tokens(
    rewards_K: torch.Tensor, values_KL: Sequence[torch.Tensor], credit: ValueCredit, gae: Gae
) -> tuple[torch.Tensor, torch.Tensor]:
    """arXiv 2203.02155: a sampled token is a time step; what a call earned is on its last."""
    values = torch.cat(list(values_KL))
    found = gae(
        torch.cat([_at_the_end(*pair) for pair in zip(rewards_K, values_KL, strict=True)]), values, *_of(credit)
    )
    return found, found + values


def _bilevel(
    rewards_K: torch.Tensor, values_KL: Sequence[torch.Tensor], credit: ValueCredit, gae: Gae
) -> tuple[torch.Tensor, torch.Tensor]:
    """VAGEN, arXiv 2510.16907, section "Bi-Level General Advantage Estimation".

    Estimate over turns first, with the values before their last tokens. Inside a turn, the last token's advantage is
    the turn's: its reward is chosen so that its delta is exactly that.
    """
    ends_K = torch.stack([values_L[-1] for values_L in values_KL])
    found_K = gae(rewards_K, ends_K, *_of(credit))
    inside = [
        gae(_at_the_end(advantage + values_L[-1], values_L), values_L, credit.gamma_token, credit.lam_token)
        for advantage, values_L in zip(found_K, values_KL, strict=True)
    ]
    found = torch.cat(inside)
    return found, found + torch.cat(list(values_KL))


def _of(credit: ValueCredit) -> tuple[float, float]:
    return credit.gamma, credit.lam


def _at_the_end(reward: torch.Tensor, values_L: torch.Tensor) -> torch.Tensor:
    rewards_L = torch.zeros_like(values_L)
    rewards_L[-1] = reward
    return rewards_L


_SCHEMES = {"gae_turns": _turns, "gae_tokens": _tokens, "gae_bilevel": _bilevel}

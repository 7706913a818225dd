"""Generalized advantage estimation over sampled tokens: each of them is one time step.

Formula: as in ``gae_turns.py`` with tokens for turns; tokens that were not sampled (prompts, tool output) are not time
steps, so the step after a call's last token is the next call's first. Source: Schulman et al. (arXiv 1506.02438),
equations 11 to 16, as applied to tokens by Ouyang et al. (arXiv 2203.02155); before whitening it equals verl's ``gae``.
Nor are the tokens of a call that is not trained: what it earned is met at the last trained token before it.

The values come from the trainer's critic, which is where this runs (``training/update/estimation/critic_schemes.py``).
"""

from collections.abc import Sequence


def token_gae(
    rewards_L: Sequence[float],
    values_L: Sequence[float],
    mask_L: Sequence[int],
    *,
    gamma: float,
    lam: float,
    next_value: float = 0.0,
    next_advantage: float = 0.0,
) -> list[float]:
    """Return the advantages ``[L]``, 0.0 where the mask is 0.

    Args:
        rewards_L: on the token that earned it, usually the last sampled one of a call.
        values_L: the critic's value before each token.
        mask_L: 1 where the token was sampled.
        next_value: of the sampled token that follows the last one; 0 at the end of the attempt.
        next_advantage: likewise.
    """
    advantages_L = [0.0] * len(mask_L)
    for index in reversed(range(len(mask_L))):
        if not mask_L[index]:
            continue
        delta = rewards_L[index] + gamma * next_value - values_L[index]
        next_advantage = advantages_L[index] = delta + gamma * lam * next_advantage
        next_value = values_L[index]
    return advantages_L

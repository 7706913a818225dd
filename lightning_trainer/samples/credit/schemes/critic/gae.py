"""Generalized advantage estimation over tokens, over turns, and over both (``gae_tokens``, ``gae_turns``,
``gae_bilevel``).

The values come from the trainer's critic, which is where this runs (``training/update/estimation/critic_schemes.py``).
Source: Schulman et al., High-Dimensional Continuous Control Using Generalized Advantage Estimation (arXiv 1506.02438),
equations 11 to 16.

**Turns**: each call is one time step of the decision process (Zhou et al., ArCHer, arXiv 2402.19446). ``delta_t = r_t +
gamma * V_{t+1} - V_t`` and ``A_t = delta_t + gamma * lam * A_{t+1}``; beyond the last turn ``V = A = 0``, and the
terminal reward is added to ``r_t``. Edges are parent edges; at a fork ``V`` and ``A`` are means over the branches, as
in ``returns.py``. A turn that is not trained is a time step for which the critic gave no value. What followed it is
used instead, ``V_t = r_t + gamma * V_{t+1}``, so ``delta_t = 0``. With ``lam = 1`` every other turn has the same
advantage as with a value of the critic's there.

**Tokens**: as for turns, with sampled tokens in their place, as applied by Ouyang et al. (arXiv 2203.02155); before
whitening it equals verl's ``gae``. Tokens that were not sampled (prompts, tool output) are not time steps, so the step
after a call's last token is the next call's first. Nor are the tokens of a call that is not trained: its reward arrives
one time step after the last trained token before it, together with the value of what follows, so ``gamma`` discounts
both.

**Both**: over turns first, then over the tokens inside each turn. With the critic's values before each token and
``V_k`` that before the last token of turn ``k``:

    turn:   delta_k = r_k + gamma_turn * V_{k+1} - V_k
            A_k = delta_k + gamma_turn * lam_turn * A_{k+1}
    token:  A_{k,last} = A_k
            delta_{k,i} = gamma_token * V_{k,i+1} - V_{k,i}
            A_{k,i} = delta_{k,i} + gamma_token * lam_token * A_{k,i+1}

Beyond the last turn ``V = A = 0``; a turn's tokens see other turns only through ``A_k``. Source: Wang et al., VAGEN
(arXiv 2510.16907), "Bi-Level General Advantage Estimation"; RAGEN's implementation (Wang et al., arXiv 2504.20073,
since May 2025) computes the same with one lambda for both, counts as turns only those whose reward is not 0, and
whitens the result; here each call is a turn.
"""

from collections.abc import Sequence

from lightning_trainer.samples.credit.schemes.returns import leaves_first


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
        next_advantage: that token's advantage; 0 at the end of the attempt.
    """
    advantages_L = [0.0] * len(mask_L)
    for index in reversed(range(len(mask_L))):
        if not mask_L[index]:
            continue
        delta = rewards_L[index] + gamma * next_value - values_L[index]
        next_advantage = advantages_L[index] = delta + gamma * lam * next_advantage
        next_value = values_L[index]
    return advantages_L


def turn_gae(
    parents: Sequence[int | None],
    rewards_T: Sequence[float],
    values_T: Sequence[float | None],
    *,
    end: float = 0.0,
    gamma: float,
    lam: float,
) -> list[float]:
    """Return the advantages ``[T]``.

    Args:
        parents: index of the turn that each follows; in a chain ``[None, 0, 1, ...]``.
        rewards_T: of the single turns.
        values_T: the critic's value of the state that each turn was taken in; None for a turn that is not trained.
        end: terminal reward, met by the last turn of every branch.
    """
    branches = [0] * len(parents)
    for parent in parents:
        if parent is not None:
            branches[parent] += 1
    next_value, next_advantage = [0.0] * len(parents), [0.0] * len(parents)
    advantages_T = [0.0] * len(parents)
    for t in leaves_first(parents):
        reward = rewards_T[t] + (end if branches[t] == 0 else 0.0)
        follows = reward + gamma * next_value[t]
        known = values_T[t]
        value = follows if known is None else known
        advantages_T[t] = follows - value + gamma * lam * next_advantage[t]
        parent = parents[t]
        if parent is not None:
            next_value[parent] += value / branches[parent]
            next_advantage[parent] += advantages_T[t] / branches[parent]
    return advantages_T


def bilevel_gae(
    rewards_K: Sequence[float],
    values_KL: Sequence[Sequence[float]],
    *,
    gamma_turn: float,
    lam_turn: float,
    gamma_token: float,
    lam_token: float,
    parents: Sequence[int | None] | None = None,
) -> list[list[float]]:
    """Return the advantages ``[K][L]`` of the sampled tokens of each turn.

    Args:
        rewards_K: of the turns; the terminal reward belongs to the last one.
        values_KL: for each turn the values before its sampled tokens; none for a turn that is not trained, which gets
            no advantages and passes on what follows it (``turn_gae``).
        parents: index of the turn that each follows; one after the other when absent.
    """
    if parents is None:
        parents = [None if k == 0 else k - 1 for k in range(len(rewards_K))]
    last_values_K = [values_L[-1] if values_L else None for values_L in values_KL]
    turns_K = turn_gae(parents, rewards_K, last_values_K, gamma=gamma_turn, lam=lam_turn)
    advantages_KL: list[list[float]] = []
    for turn, values_L in zip(turns_K, values_KL, strict=True):
        advantages_L = [turn] * len(values_L)
        for index in reversed(range(len(values_L) - 1)):
            delta = gamma_token * values_L[index + 1] - values_L[index]
            advantages_L[index] = delta + gamma_token * lam_token * advantages_L[index + 1]
        advantages_KL.append(advantages_L)
    return advantages_KL

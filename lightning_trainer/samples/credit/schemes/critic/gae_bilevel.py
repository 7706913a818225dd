"""Bi-level generalized advantage estimation: over turns first, then over the tokens inside each turn.

Formula, with the critic's values before each token and ``V_k`` that before the last token of turn ``k``:

    turn:   delta_k = r_k + gamma_turn * V_{k+1} - V_k
            A_k = delta_k + gamma_turn * lam_turn * A_{k+1}
    token:  A_{k,last} = A_k
            delta_{k,i} = gamma_token * V_{k,i+1} - V_{k,i}
            A_{k,i} = delta_{k,i} + gamma_token * lam_token * A_{k,i+1}

Beyond the last turn ``V = A = 0``; a turn's tokens see other turns only through ``A_k``. Source: Wang et al., VAGEN
(arXiv 2510.16907), "Bi-Level General Advantage Estimation"; RAGEN's implementation (Wang et al., arXiv 2504.20073,
since May 2025) computes the same with one lambda for both, takes for turns only those whose reward is not 0, and
whitens the result; here turns are told by the calls.

The values come from the trainer's critic, which is where this runs (``training/update/estimation/critic_schemes.py``).
"""

from collections.abc import Sequence

from lightning_trainer.samples.credit.schemes.critic.gae_turns import turn_gae


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
            no advantages and passes on what follows it (``gae_turns.py``).
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

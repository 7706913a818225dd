"""Generalized advantage estimation over turns: each call is one time step of the decision process.

Formula: ``delta_t = r_t + gamma * V_{t+1} - V_t`` and ``A_t = delta_t + gamma * lam * A_{t+1}``, beyond the last turn
``V = A = 0`` and the terminal reward is added to ``r_t``. Edges are parent edges; at a fork ``V`` and ``A`` are means
over the branches, as in ``returns.py``. Source: Schulman et al., High-Dimensional Continuous Control Using Generalized
Advantage Estimation (arXiv 1506.02438), equations 11 to 16; turns as time steps: Zhou et al., ArCHer (arXiv
2402.19446).

A turn that is not trained is a time step whose value no critic gave: what followed it is taken for it, ``V_t = r_t +
gamma * V_{t+1}``, so ``delta_t = 0``. With ``lam = 1`` every other turn has the advantage that it would have had.

The values come from the trainer's critic, which is where this runs (``training/update/estimation/critic_schemes.py``).
"""

from collections.abc import Sequence

from lightning_trainer.samples.credit.schemes.returns import leaves_first


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
        values_T: the critic's value of the state that each turn was taken in; None of a turn that is not trained.
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

"""GiGPO: how good the whole attempt was among its group, and how good the call was among calls in the same state.

Formula, for call ``t`` of attempt ``i`` (equations of Feng et al., arXiv 2505.10978):

    A^E_i = (R_i - mean(R)) / F_norm(R)                         episode term over the attempts of the group    (3)
    G_t   = r_t + gamma * G_{t+1}                               discounted return                              (5)
    A^S_t = (G_t - mean(G)) / F_norm(G)                         among all calls of the group in one state     (6, 7)
    A_t   = A^E_i + omega * A^S_t                                                                              (8)

``R_i`` is the undiscounted sum of the attempt's rewards. A call that was alone in its state has ``A^S = 0``: it is
exactly as good as its group. The paper leaves the anchor state to the environment. Here it is what the agent says that
it is (``lt.state``); if the agent says nothing, it is the prompt of the call or, with ``state = "observation"``, what
is new in that prompt since the call that it follows (what the environment showed, whatever had been said before).
States are compared within one agent. One row per call; the values are advantages. A call that cannot be trained still
counts among the calls of its state, if its state is known.

``F_norm`` is the standard deviation of the sample, or 1 (``normalize_by_std = false``). The authors' code (verl-agent)
agrees with this except for one default: there, an attempt enters the mean and deviation of (3) once for each of its
calls, so that long attempts weigh more; here, as in the equation, once.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

from lightning_trainer.samples.credit.kinds import end_of, kinds_by_agent, plus, steps_of, total
from lightning_trainer.samples.credit.schemes.returns import parent_indices, tree_returns
from lightning_trainer.types import Credit, Trajectory

# How much better than its peers: the group-relative advantage of scalars.
#
# Formula: ``x - mean``, divided by ``F_norm``: the standard deviation (of the sample, ``n - 1``, as in verl) or 1. A
# single value gives 0: it is exactly as good as the mean of its group. Source: Shao et al., DeepSeekMath (arXiv
# 2402.03300), section 4.1.2; Feng et al., GiGPO (arXiv 2505.10978), equations 3 and 7.

_EPSILON = 1e-6
"""Added to the deviation, as verl does: equal values give 0 and not 0 / 0."""


def relative(values_G: Sequence[float], *, normalize_by_std: bool) -> list[float]:
    """Return the advantages ``[G]`` of values that are compared with each other."""
    if len(values_G) < 2:
        return [0.0] * len(values_G)
    mean = math.fsum(values_G) / len(values_G)
    centered_G = [value - mean for value in values_G]
    if not normalize_by_std:
        return centered_G
    deviation = math.sqrt(math.fsum(value * value for value in centered_G) / (len(values_G) - 1))
    return [value / (deviation + _EPSILON) for value in centered_G]


def gigpo_advantages(
    episodes_G: Sequence[float],
    returns_GT: Sequence[Sequence[float]],
    states_GT: Sequence[Sequence[Hashable]],
    *,
    omega: float,
    normalize_by_std: bool,
) -> list[list[float]]:
    """Return equation 8 for every call.

    Args:
        episodes_G: sum of the rewards of each attempt.
        returns_GT: discounted return of each of its calls.
        states_GT: the anchor state of each call.
    """
    episode_terms_G = relative(episodes_G, normalize_by_std=normalize_by_std)
    members: dict[Hashable, list[tuple[int, int]]] = {}
    for g, states_T in enumerate(states_GT):
        for t, state in enumerate(states_T):
            members.setdefault(state, []).append((g, t))
    advantages = [[term] * len(returns_T) for term, returns_T in zip(episode_terms_G, returns_GT, strict=True)]
    for places in members.values():
        terms = relative([returns_GT[g][t] for g, t in places], normalize_by_std=normalize_by_std)
        for (g, t), term in zip(places, terms, strict=True):
            advantages[g][t] += omega * term
    return advantages


@dataclass(frozen=True, slots=True)
class Gigpo:
    """See the module; ranges are in ``GigpoCredit``. An attempt that lacks a reward is not compared."""

    omega: float = 1.0
    gamma: float = 0.95
    normalize_by_std: bool = True
    state: Literal["prompt", "observation"] = "prompt"

    def __call__(self, trajectories_G: Sequence[Trajectory]) -> list[list[Credit]]:
        """See ``CreditScheme``."""
        values: dict[int, list[float]] = {}
        for agent, kinds in kinds_by_agent(trajectories_G).items():
            complete: list[int] = []
            episodes_G: list[float] = []
            returns_GT: list[list[float]] = []
            for index, trajectory in enumerate(trajectories_G):
                if trajectory.agent != agent or not kinds.any:
                    continue
                steps_T, end = steps_of(trajectory, kinds), end_of(trajectory, kinds)
                episode = plus(total(steps_T), end)
                returns_T = tree_returns(parent_indices(trajectory), steps_T, end, self.gamma)
                if episode is not None:
                    complete.append(index)
                    episodes_G.append(episode)
                    returns_GT.append([value for value in returns_T if value is not None])
            states_GT = [[*self._states(trajectories_G[index])] for index in complete]
            advantages = gigpo_advantages(
                episodes_G, returns_GT, states_GT, omega=self.omega, normalize_by_std=self.normalize_by_std
            )
            values.update(zip(complete, advantages, strict=True))
        return [
            [
                Credit(values[index][t] if index in values else None, step.transition_id)
                for t, step in enumerate(trajectory.transitions)
            ]
            for index, trajectory in enumerate(trajectories_G)
        ]

    def _states(self, trajectory: Trajectory) -> list[Hashable]:
        states: list[Hashable] = []
        for step, parent in zip(trajectory.transitions, parent_indices(trajectory), strict=True):
            if step.state is not None:
                states.append(("named", step.state))
                continue
            if not step.prompt_ids:
                states.append(("unknown", step.transition_id))
                continue
            if self.state == "prompt":
                states.append((step.prompt_ids, step.media))  # different images have the same placeholders
                continue
            before = () if parent is None else _path(trajectory, parent)
            known = len(before) if step.prompt_ids[: len(before)] == before else 0
            states.append((step.prompt_ids[known:], step.media))
        return states


def _path(trajectory: Trajectory, index: int) -> tuple[int, ...]:
    step = trajectory.transitions[index]
    return step.prompt_ids + step.response_ids

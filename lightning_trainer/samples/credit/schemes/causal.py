"""Causal credit: rewards flow back along the span graph, across agents, and nowhere else.

Formula: ``G_n = r_n + gamma * sum over the e that n led to of G_e / causes(e)``, where ``causes(e)`` is the number of
calls that led to ``e``. So a call that starts three sub-agents is credited with what all three earned, three sub-agents
whose answers meet in one call share what that call earned, and a branch sees nothing of its siblings. The attempt's
reward ``R`` is what all of its last calls led to together: each gets ``R / L`` of ``L``; an agent's own ``R_i``
likewise among that agent's last calls. At ``gamma = 1`` the credits of the calls that nothing led to sum to all rewards
of the attempt (promise 4).

Edges are ``Transition.causes`` (``transitions/causes.py``); ``parent_id`` if those were not computed. One row per
transition. Source: discounting per edge as in Sutton & Barto, 2nd ed., section 3.3; dividing at joins keeps the sum, as
redistributed returns must (return equivalence: Arjona-Medina et al., RUDDER, arXiv 1806.07857). Discounting in order of
insertion is wrong: see AReaL's issue 1666.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lightning_trainer.errors import CreditAssignmentError
from lightning_trainer.samples.credit.kinds import Kinds, kinds_by_agent, outcome_of, own_of, plus, steps_of, times
from lightning_trainer.samples.credit.schemes.returns import parent_indices
from lightning_trainer.types import Credit, Trajectory, Transition


def graph_returns(
    causes: Sequence[Sequence[int]], rewards_N: Sequence[float | None], gamma: float
) -> list[float | None]:
    """Return ``G [N]``; time is linear in nodes and edges.

    Args:
        causes: for each node the nodes that led to it; without cycles.
        rewards_N: what each node earned itself, None where missing.

    Raises:
        CreditAssignmentError: the edges form a cycle.
    """
    awaited = [0] * len(causes)
    for own in causes:
        for cause in own:
            awaited[cause] += 1
    following: list[float | None] = [0.0] * len(causes)
    returns_N: list[float | None] = [None] * len(causes)
    order = [node for node, count in enumerate(awaited) if count == 0]
    for node in order:  # grows while it is read
        returns_N[node] = plus(rewards_N[node], times(following[node], gamma))
        share = times(returns_N[node], 1 / max(1, len(causes[node])))
        for cause in causes[node]:
            following[cause] = plus(following[cause], share)
            awaited[cause] -= 1
            if awaited[cause] == 0:
                order.append(cause)
    if len(order) != len(causes):
        raise CreditAssignmentError(f"the causes of {len(causes) - len(order)} transitions run in a circle")
    return returns_N


@dataclass(frozen=True, slots=True)
class Causal:
    """See the module; ranges are in ``CausalCredit``."""

    gamma: float = 1.0

    def __call__(self, trajectories_G: Sequence[Trajectory]) -> list[list[Credit]]:
        """See ``CreditScheme``."""
        kinds = kinds_by_agent(trajectories_G)
        by_attempt: dict[str, list[Trajectory]] = {}
        for trajectory in trajectories_G:
            by_attempt.setdefault(trajectory.attempt.attempt_id, []).append(trajectory)
        values: dict[str, float | None] = {}
        for members in by_attempt.values():
            values.update(self._of_attempt(members, kinds))
        any_reward = any(own.any for own in kinds.values())
        return [
            [
                Credit(values[step.transition_id] if any_reward else None, step.transition_id)
                for step in trajectory.transitions
            ]
            for trajectory in trajectories_G
        ]

    def _of_attempt(self, members: Sequence[Trajectory], kinds: Mapping[str, Kinds]) -> dict[str, float | None]:
        steps = [step for trajectory in members for step in trajectory.transitions]
        index_of = {step.transition_id: index for index, step in enumerate(steps)}
        causes = [[index_of[name] for name in _causes(step) if name in index_of] for step in steps]
        rewards_N = [reward for trajectory in members for reward in steps_of(trajectory, kinds[trajectory.agent])]
        inner = {cause for own in causes for cause in own}
        last = [index for index in range(len(steps)) if index not in inner]
        _share(rewards_N, last, outcome_of(members[0], kinds[members[0].agent]))
        start = 0
        for trajectory in members:
            inner_of_agent = set(parent_indices(trajectory))
            last = [start + t for t in range(len(trajectory.transitions)) if t not in inner_of_agent]
            _share(rewards_N, last, own_of(trajectory, kinds[trajectory.agent]))
            start += len(trajectory.transitions)
        returns_N = graph_returns(causes, rewards_N, self.gamma)
        return {step.transition_id: value for step, value in zip(steps, returns_N, strict=True)}


def _causes(step: Transition) -> tuple[str, ...]:
    if step.causes is not None:
        return step.causes
    return () if step.parent_id is None else (step.parent_id,)


def _share(rewards_N: list[float | None], among: Sequence[int], whole: float | None) -> None:
    for index in among:
        rewards_N[index] = plus(rewards_N[index], times(whole, 1 / len(among)))

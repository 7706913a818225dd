"""Each transition's own reward: the input from which the schemes with a critic compute advantages later.

A transition gets ``r_t``; the last one of every branch also gets the agent's and the attempt's reward. Where a reward
is missing, so is that of everything before it in the branch, because an advantage counts all rewards that follow. One
row per transition. The schemes that need values (``gae_turns``, ``gae_tokens``, ``gae_bilevel``) do only this here; the
trainer, which has the critic, runs their formulas.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_trainer.samples.credit.kinds import end_of, kinds_by_agent, plus, steps_of
from lightning_trainer.samples.credit.schemes.returns import parent_indices, tree_returns
from lightning_trainer.types import Credit, Trajectory


@dataclass(frozen=True, slots=True)
class TurnRewards:
    """Credits each transition with its own reward, and the last of each branch with the rewards at the end too."""

    def __call__(self, trajectories_G: Sequence[Trajectory]) -> list[list[Credit]]:
        """See ``CreditScheme``."""
        kinds = kinds_by_agent(trajectories_G)
        credits_G: list[list[Credit]] = []
        for trajectory in trajectories_G:
            own = kinds[trajectory.agent]
            parents, steps_T, end = parent_indices(trajectory), steps_of(trajectory, own), end_of(trajectory, own)
            inner = set(parents)
            rewards_T = [reward if index in inner else plus(reward, end) for index, reward in enumerate(steps_T)]
            returns_T = tree_returns(parents, steps_T, end, 1.0)
            credits_G.append(
                [
                    Credit(reward if own.any and known is not None else None, step.transition_id)
                    for step, reward, known in zip(trajectory.transitions, rewards_T, returns_T, strict=True)
                ]
            )
        return credits_G

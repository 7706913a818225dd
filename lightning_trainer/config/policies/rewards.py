"""``reward = { NAME = 1.0, OTHER = { weight = 0.5, correct = true } }``: what an attempt's reward is made of."""

from collections.abc import Mapping

from lightning_trainer.config.sections import Section

LARGEST_WEIGHT = 1000


class RewardTerm(Section):
    """One of several rewards, with more settings than its weight."""

    weight: float = 1.0
    correct: bool = False
    """Correct the reward for its judge's known errors (``rewards/reliability.py``), which are measured against the
    rewards in the judge's ``checked_by``."""


Reward = str | Mapping[str, float | RewardTerm]


def checked_reward(reward: Reward) -> Reward:
    """Return the reward. Raises ValueError: it names nothing, or a weight is not allowed."""
    if isinstance(reward, str):
        if not reward:
            raise ValueError("name the evaluation that is the reward, or leave it out")
        return reward
    if not reward:
        raise ValueError("name at least one evaluation, as in {score = 1.0, format = 0.2}")
    for name, weight in weights_of(reward).items():
        if not name or not 0 < abs(weight) <= LARGEST_WEIGHT:
            raise ValueError(
                f"the weight of {name!r} is {weight}; give a number other than 0 between -{LARGEST_WEIGHT} and "
                f"{LARGEST_WEIGHT}, or leave it out"
            )
    return reward


def weights_of(reward: Reward) -> Mapping[str, float]:
    """Return the weights by name."""
    if isinstance(reward, str):
        return {reward: 1.0}
    return {name: term.weight if isinstance(term, RewardTerm) else term for name, term in reward.items()}


def corrected_of(reward: Reward) -> frozenset[str]:
    """Return the names of the rewards whose judge is corrected."""
    if isinstance(reward, str):
        return frozenset()
    return frozenset(name for name, term in reward.items() if isinstance(term, RewardTerm) and term.correct)

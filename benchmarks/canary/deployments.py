"""Simulated deployments: rollouts come one by one, the candidate answers a share, each succeeds or fails by chance."""

import random
from collections import Counter
from dataclasses import dataclass

from lightning_trainer.versions.sequential import Decision, decide

LOOK_EVERY = 50
"""Rollouts of the live traffic between two looks."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """How a deployment ended."""

    decision: Decision
    candidate: int
    """Rollouts that the candidate answered."""
    traffic: int
    """All rollouts until then."""


def deploy(
    live: float, candidate: float, *, traffic: int, share: float, error: float, tolerance: float, most: int, seed: int
) -> Deployment:
    """Simulate one deployment with these success rates of the live version and of the candidate."""
    generator = random.Random(seed)
    old: Counter[float] = Counter()
    new: Counter[float] = Counter()
    for number in range(1, traffic + 1):
        of_new = generator.random() < share
        (new if of_new else old)[float(generator.random() < (candidate if of_new else live))] += 1
        if number % LOOK_EVERY == 0:
            decision = decide(new, old, share=share, error=error, tolerance=tolerance, most=most)
            if decision is not Decision.GOING_ON:
                return Deployment(decision, new.total(), number)
    return Deployment(Decision.STOPPED, new.total(), traffic)

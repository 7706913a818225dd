"""The choice of a step's tasks among candidates: half of them as they come, half by how uncertain their success is.

A group teaches by the differences between its attempts, so a task that is always solved, or never, is wasted. The
variance ``p (1 - p)`` of a reward in [0, 1] says how much there is to learn ("learnability": Rutherford et al. 2024, No
Regrets, arXiv 2408.15099, section 4). Tasks seldom repeat, so ``p`` is learned per kind of task, and drawn from its
posterior (Thompson sampling): a kind that was rarely tried is tried again now and then.

By variance alone, a kind that is never solved is worth as little as one that always is, and is hardly tried again while
another is solved most of the time. But the former has everything to gain and the latter nothing, so the missing reward
counts, too: ``p (1 - p) + 0.05 (1 - p)``.

A policy that is shown one kind at a time forgets the others, and answers every kind as if it were that one. So tasks
are drawn in proportion to their worth instead of taking the best ones, and half of a step is left as the program made
it (as Prioritized Level Replay mixes replayed levels with new ones: Jiang et al. 2021, arXiv 2010.03934, section 3).
"""

import random
import threading
from collections.abc import Callable, Container, Hashable, Sequence
from typing import Any, Generic

from lightning_trainer.rollouts.attempt import NamedT, TaskT

_REMEMBERED = 0.7
"""Decay of outcomes per step: the policy that produced them has changed since."""
_MISSING = 0.05
"""Weight of the missing reward, next to the variance: a kind that is never solved is tried as often as one that is
solved 19 times of 20."""


class Curriculum(Generic[TaskT]):
    """Chooses tasks by the outcomes of training attempts at tasks of the same kind; evaluations are ignored.

    What it has learned is only in memory: a restarted run begins without it, but continues the tasks it had started.

    Args:
        kind: returns the kind of a task, such as a family, a level, or a length; anything hashable.
        seed: seed of the draws.
    """

    def __init__(self, kind: Callable[[TaskT], Hashable], *, seed: int = 0) -> None:
        self._kind = kind
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._seen: dict[Hashable, list[float]] = {}
        """For each kind, the sum of the rewards, and the sum of what they were short of 1."""

    def saw(self, task: TaskT, reward: float) -> None:
        """Learn from an attempt; a reward outside of [0, 1] counts as the nearer bound."""
        won = min(1.0, max(0.0, reward))
        with self._lock:
            counts = self._seen.setdefault(self._kind(task), [0.0, 0.0])
            counts[0] += won
            counts[1] += 1.0 - won

    def choose(self, candidates: Sequence[NamedT], count: int, *, started: Container[str] = ()) -> list[NamedT]:
        """Return ``count`` of the candidates, and decay earlier outcomes: call it once per step.

        Args:
            started: ids of tasks that were chosen before an interruption; they come first.
        """
        chosen = [task for task in candidates if task.id in started][:count]
        others = [task for task in candidates if task.id not in started]
        as_they_come = (count - len(chosen) + 1) // 2
        chosen += others[:as_they_come]
        with self._lock:
            drawn = sorted(others[as_they_come:], key=self._place)
            for counts in self._seen.values():
                counts[:] = [_REMEMBERED * count for count in counts]
        return chosen + drawn[: count - len(chosen)]

    def _place(self, task: Any) -> float:
        """Draw a task's place in a weighted order (Efraimidis & Spirakis 2006): an exponential time until its turn."""
        return self._random.expovariate(self._worth(task))

    def _worth(self, task: Any) -> float:
        """Draw how much there is to learn, starting from a uniform prior; more than 0."""
        won, lost = self._seen.get(self._kind(task), (0.0, 0.0))
        p = self._random.betavariate(1.0 + won, 1.0 + lost)
        return max(1e-9, (p + _MISSING) * (1.0 - p))

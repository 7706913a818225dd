"""The optimizer: candidates are tried at tasks, and better texts proposed from what happened.

Source: Agrawal et al., GEPA: Reflective Prompt Evolution Can Outperform Reinforcement Learning, arXiv 2507.19457,
algorithm 1. A candidate is one version of each prompt. One of the frontier (``pareto.py``) is tried at a few feedback
tasks, and one of its prompts gets a new text made from these attempts; the child that earns more at the same tasks than
its parent is tried at all validation tasks and becomes a candidate itself.
"""

import inspect
import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Generic

import lightning_instrumentation as lt
from lightning_instrumentation.prompts.live import PromptVersion
from lightning_instrumentation.prompts.prompt import serving_prompts

from lightning_trainer.errors import LightningError
from lightning_trainer.rollouts.attempt import AttemptEnded, AttemptFunction, Event, Task, TaskT
from lightning_trainer.rollouts.daemon_client import daemon_of_client
from lightning_trainer.rollouts.prompts import pareto
from lightning_trainer.rollouts.prompts.client import PromptClient
from lightning_trainer.rollouts.run_name import checked_run, default_run
from lightning_trainer.rollouts.runner import Runner
from lightning_trainer.rollouts.task_file import listed_tasks, task_of

_log = logging.getLogger(__name__)
_FLUSH_S = 30.0
_ARRIVES_S = 10.0
"""What a program has recorded comes after its end."""
_MOST_REFUSED = 5
"""Proposals that the daemon refuses one after the other: then it is over."""
_MOST_SHOWN = 64
"""Attempts that one proposal is made from."""


def _named(versions: Mapping[str, PromptVersion]) -> str:
    return ", ".join(f"{name}@v{one.version}" for name, one in versions.items())


@dataclass(frozen=True)
class Candidate:
    """A version of each prompt, with what it earned."""

    versions: Mapping[str, PromptVersion]
    validation: Mapping[str, float]
    """Rewards by task."""
    parent: int | None = None
    """Its index; None for what the program had."""
    attempts: dict[str, AttemptEnded] = field(default_factory=dict)
    """At feedback tasks, by task."""

    @property
    def name(self) -> str:
        return _named(self.versions)

    @property
    def mean(self) -> float:
        """Return the mean reward at the validation tasks."""
        return fmean(self.validation.values())


@dataclass(frozen=True, slots=True)
class CandidateTried:
    """A candidate has been tried: at a few feedback tasks if it was not better there, else at the validation tasks."""

    candidate: str
    parent: str | None
    mean: float
    tasks: int
    kept: bool
    attempts_left: int


@dataclass(frozen=True)
class Optimized:
    """What an optimization has found."""

    base: Candidate
    best: Candidate
    """The best at the validation tasks, on which it was chosen; so its mean there is too high."""
    candidates: Sequence[Candidate]
    attempts: int
    """How many were made."""
    held_out: tuple[Mapping[str, float], Mapping[str, float]] | None = None
    """Rewards of base and best by held-out task, which neither was chosen by; None: there are no such tasks."""


class PromptOptimizer(Generic[TaskT]):
    """Finds better texts for prompts that an agent gets by ``lt.prompt``.

    ``prompts`` are their names, and ``attempt(task) -> reward`` is as a ``Runner``'s, a ``Command`` included. All
    attempts are recorded as evaluations: no policy is trained on them.

    Raises:
        LightningError: no prompt is named, or one twice.
    """

    def __init__(
        self,
        prompts: str | Sequence[str],
        attempt: AttemptFunction[TaskT],
        *,
        run: str | None = None,
        endpoint: str | None = None,
        concurrency: int = 8,
        timeout_s: float = 120.0,
        seed: int = 0,
        failed_reward: float = 0.0,
        on_event: Callable[[Event | CandidateTried], None] = lambda event: None,
    ) -> None:
        """``failed_reward`` is what an attempt counts that failed or got no reward."""
        self._names = [prompts] if isinstance(prompts, str) else list(prompts)
        if not self._names or len(set(self._names)) < len(self._names):
            raise LightningError(f"the prompts are {self._names}; name at least one, and each once")
        reached = daemon_of_client(endpoint)
        self._daemon = PromptClient(reached)
        self._given = attempt
        self._serving: Mapping[str, PromptVersion] = {}
        name = default_run(self._names, attempt) if run is None else checked_run(run)
        self._runner: Runner[Any] = Runner(
            (),
            self._attempt,
            run=name,
            endpoint=endpoint,
            concurrency=concurrency,
            timeout_s=timeout_s,
            on_event=on_event,
        )
        self._chance = random.Random(seed)
        self._failed_reward = failed_reward
        self._on_event = on_event
        self._left = 0

    def optimize(
        self,
        tasks: Sequence[TaskT],
        *,
        attempts: int,
        validation: Sequence[TaskT] | None = None,
        held_out: Sequence[TaskT] = (),
        minibatch: int = 3,
        perfect: float = 1.0,
    ) -> Optimized:
        """Look for better texts until the attempts are used up; nothing is served that was not (``use``).

        Args:
            tasks: those that texts are made from.
            attempts: how many are made at most, those at held-out tasks not counted.
            validation: tasks that candidates are compared at; by default every second one of ``tasks``.
            held_out: tasks that only what the program had and the best candidate are tried at, at the end.
            minibatch: how many tasks a text is made from.
            perfect: where all of a minibatch earn this, there is nothing to learn from it.

        Raises:
            LightningError: there are too few tasks or attempts, the agent does not ask for the prompts, no attempt gets
                a reward, nothing can be proposed, or the daemon cannot be reached.
        """
        feedback, validated = self._split(tasks, validation)
        if not feedback or not validated or minibatch < 1:
            raise LightningError(
                f"there are {len(feedback)} tasks to learn from, {len(validated)} to compare at, and minibatch is "
                f"{minibatch}; give at least 1 of each"
            )
        minibatch = min(minibatch, len(feedback))
        needed = 2 * len(validated) + 2 * minibatch
        if attempts < needed:
            raise LightningError(
                f"attempts is {attempts}; {needed} are needed to try what the program has and one candidate at "
                f"{len(validated)} validation tasks: raise it, or give fewer tasks"
            )
        self._left = attempts
        candidates = [self._base(validated)]
        self._search(candidates, feedback, validated, minibatch, perfect)
        best = max(candidates, key=lambda one: one.mean)
        made = attempts - self._left
        return Optimized(candidates[0], best, candidates, made, self._held_out(candidates[0], best, held_out))

    def use(self, candidate: Candidate) -> None:
        """Serve a candidate's texts to every program that asks for the prompts with the same defaults.

        Raises:
            LightningError: the daemon cannot be reached, or has not got them any more.
        """
        for name, version in candidate.versions.items():
            self._daemon.use(name, version.version)

    def _search(
        self,
        candidates: list[Candidate],
        feedback: Sequence[Task],
        validated: Sequence[Task],
        minibatch: int,
        perfect: float,
    ) -> None:
        refused = 0
        most = 2 * minibatch + len(validated)
        rounds = 100 * len(feedback)  # those that need no attempt end, too
        for number, batch in zip(range(rounds), self._minibatches(feedback, minibatch), strict=False):
            if self._left < most:
                return
            index = pareto.drawn([one.validation for one in candidates], self._chance)
            parent = candidates[index]
            self._try_at(parent.versions, [one for one in batch if one.id not in parent.attempts], parent.attempts)
            before = [self._reward(parent.attempts[one.id]) for one in batch]
            if min(before) >= perfect:
                continue
            name = self._names[number % len(self._names)]
            try:
                child = self._child(parent, name, batch)
                refused = 0
            except LightningError as error:
                refused += 1
                if refused >= _MOST_REFUSED:
                    raise
                _log.warning("no new text for %s from these attempts: %s", name, error)
                continue
            if child[name].version == parent.versions[name].version:
                continue
            tried: dict[str, AttemptEnded] = {}
            self._try_at(child, batch, tried)
            after = fmean(self._reward(one) for one in tried.values())
            kept = after > fmean(before)
            if kept:
                candidates.append(Candidate(child, self._validated(child, validated), index, tried))
            self._say(child, parent, candidates[-1].mean if kept else after, len(validated if kept else batch), kept)

    def _say(self, child: Mapping[str, PromptVersion], parent: Candidate, mean: float, tasks: int, kept: bool) -> None:
        self._on_event(CandidateTried(_named(child), parent.name, mean, tasks, kept, self._left))

    def _split(self, tasks: Sequence[TaskT], validation: Sequence[TaskT] | None) -> tuple[list[Task], list[Task]]:
        named: list[Task] = [task_of(one) for one in listed_tasks(tasks)]
        compared = None if validation is None else [task_of(one) for one in listed_tasks(validation)]
        for given in (named, compared or []):
            ids = [one.id for one in given]
            if twice := next((name for name in ids if ids.count(name) > 1), None):
                raise LightningError(f"{ids.count(twice)} tasks are called {twice!r}; give each an id of its own")
        if compared is not None:
            return named, compared
        self._chance.shuffle(named)
        return named[::2], named[1::2]

    def _base(self, validated: Sequence[Task]) -> Candidate:
        """Try what the program has, and learn which versions of the prompts that is."""
        self._serving = {}
        ended = self._evaluate(validated, "validation")
        if all(one.reward is None for one in ended):
            why = next((one.error for one in ended if one.error), "attempt(task) returned None each time")
            raise LightningError(
                f"none of {len(ended)} attempts got a reward, so no text is better than another: {why}"
            )
        some = next(one for one in ended if one.reward is not None)
        versions = {name: self._daemon.used_in(name, some.attempt_id, wait_s=_ARRIVES_S) for name in self._names}
        base = Candidate(versions, {one.task_id: self._reward(one) for one in ended})
        self._score(versions, "validation", base.validation)
        self._on_event(CandidateTried(base.name, None, base.mean, len(ended), True, self._left))
        return base

    def _child(self, parent: Candidate, name: str, batch: Sequence[Task]) -> dict[str, PromptVersion]:
        first = [parent.attempts[one.id] for one in batch]
        others = sorted(parent.attempts.values(), key=self._reward, reverse=True)
        ids = dict.fromkeys(one.attempt_id for one in [*first, *others])
        seed = self._chance.randrange(1 << 31)
        child = self._daemon.propose(name, parent.versions[name].version, list(ids)[:_MOST_SHOWN], seed=seed)
        return {**parent.versions, name: child}

    def _try_at(
        self, versions: Mapping[str, PromptVersion], tasks: Sequence[Task], tried: dict[str, AttemptEnded]
    ) -> None:
        if tasks:
            self._serving = versions
            tried.update((one.task_id, one) for one in self._evaluate(tasks, "feedback"))

    def _validated(self, versions: Mapping[str, PromptVersion], tasks: Sequence[Task]) -> dict[str, float]:
        self._serving = versions
        scores = {one.task_id: self._reward(one) for one in self._evaluate(tasks, "validation")}
        self._score(versions, "validation", scores)
        return scores

    def _held_out(
        self, base: Candidate, best: Candidate, tasks: Sequence[TaskT]
    ) -> tuple[dict[str, float], dict[str, float]] | None:
        if not tasks:
            return None
        self._left += 2 * len(tasks)
        found = []
        for one in (base, best):
            self._serving = one.versions
            scores = {ended.task_id: self._reward(ended) for ended in self._evaluate(tasks, "held-out")}
            self._score(one.versions, "held-out", scores)
            found.append(scores)
            if best is base:
                break
        return found[0], found[-1]

    def _score(self, versions: Mapping[str, PromptVersion], stage: str, scores: Mapping[str, float]) -> None:
        for name, version in versions.items():
            self._daemon.put_score(name, version.version, stage=stage, mean=fmean(scores.values()), tasks=len(scores))

    def _evaluate(self, tasks: Sequence[Any], stage: str) -> list[AttemptEnded]:
        ended = self._runner.evaluate(tasks, stage=stage)
        self._left -= len(ended)
        lt.flush(_FLUSH_S)
        return ended

    def _minibatches(self, tasks: Sequence[Task], size: int) -> Iterator[list[Task]]:
        """Yield tasks that were not shown for longest, in an order that is drawn anew for each pass."""
        waiting: list[Task] = []
        while True:
            if len(waiting) < size:
                drawn = [one for one in tasks if one not in waiting]
                self._chance.shuffle(drawn)
                waiting += drawn
            batch, waiting = waiting[:size], waiting[size:]
            yield batch

    def _reward(self, ended: AttemptEnded) -> float:
        return self._failed_reward if ended.reward is None else ended.reward

    def _attempt(self, task: Any) -> Any:
        serving = self._serving
        with serving_prompts(serving):
            made = self._given(task)
        return _inside(made, serving) if inspect.isawaitable(made) else made


async def _inside(made: Any, serving: Mapping[str, PromptVersion]) -> Any:
    with serving_prompts(serving):
        return await made

"""Trying a candidate's texts at tasks: attempts are made with them, or taken from the journal, and counted."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Generic

import lightning_instrumentation as lt
from lightning_instrumentation.prompts.prompt import serving_prompts
from lightning_instrumentation.prompts.version import PromptVersion

from lightning_trainer.rollouts.attempt import AttemptEnded, AttemptFunction, Event, TaskT
from lightning_trainer.rollouts.prompts.candidates import named
from lightning_trainer.rollouts.prompts.journal import Journal
from lightning_trainer.rollouts.runner import Runner
from lightning_trainer.rollouts.task_file import content_key

_FLUSH_S = 30.0


class CandidateEvaluator(Generic[TaskT]):
    """Evaluates one candidate after the other, for one search at a time.

    Args:
        attempt: as a ``Runner``'s; it gets the candidate's texts by ``lt.prompt``.
        failed_reward: the reward counted for an attempt that failed or got none; if another attempt has earned less so
            far, the lowest reward is counted instead.
    """

    def __init__(
        self,
        attempt: AttemptFunction[TaskT],
        *,
        run: str,
        endpoint: str | None,
        concurrency: int,
        timeout_s: float,
        retries: int,
        failed_reward: float,
        on_event: Callable[[Event], None],
    ) -> None:
        self.attempts_left = 0
        self._attempt = attempt
        self._on_event = on_event
        self._serving: Mapping[str, PromptVersion] = {}
        self._journal = Journal(None, "")
        self._keys: dict[Any, str] = {}
        """For the tasks that are tried now, by id, a key that is equal for tasks of one id and content."""
        self.taken = 0
        """Attempts that were taken from the journal."""
        self._worst = failed_reward
        """The reward that is counted for a failed attempt."""
        self._runner: Runner[Any] = Runner(
            (),
            self.attempt,
            run=run,
            endpoint=endpoint,
            concurrency=concurrency,
            timeout_s=timeout_s,
            retries=retries,
            on_event=self.attempt_ended,
        )

    def begin(self, journal: Journal, attempts: int) -> None:
        """Begin a search of that many attempts, including those that its journal has."""
        self._journal, self.attempts_left, self.taken = journal, attempts, 0

    def evaluate(self, versions: Mapping[str, PromptVersion], tasks: Sequence[Any], stage: str) -> list[AttemptEnded]:
        """Return an attempt at each task, made with the versions; a prompt that has none here is served as usual."""
        self._serving, self._keys = versions, {task.id: content_key(task) for task in tasks}
        known: dict[str, AttemptEnded] = {}
        for task in tasks:
            if (said := self._journal.take(self._key(stage, task.id))) is not None:
                known[task.id] = replace(AttemptEnded(**said), task_id=task.id)
                self._on_event(known[task.id])
        self.taken += len(known)
        if missing := [task for task in tasks if task.id not in known]:
            known.update((one.task_id, one) for one in self._runner.evaluated(missing, stage=stage))
            lt.flush(_FLUSH_S)
        ended = [known[task.id] for task in tasks]
        self.attempts_left -= len(ended)
        self._worst = min([self._worst, *(one.reward for one in ended if one.reward is not None)])
        return ended

    def made_again(self, task: Any) -> AttemptEnded:
        """Return one more attempt with the versions that the program has now; it is not counted, kept or reported."""
        self._serving, self._keys = {}, {}
        (ended,) = self._runner.evaluated([task], stage="validation")
        lt.flush(_FLUSH_S)
        return ended

    def rewards(self, ended: Iterable[AttemptEnded]) -> list[float]:
        """Return the reward that is counted for each attempt."""
        return [self._worst if one.reward is None else one.reward for one in ended]

    def rewards_by_task(self, ended: Sequence[AttemptEnded]) -> dict[str, float]:
        """Return the reward that is counted for the attempt at each task."""
        return {one.task_id: reward for one, reward in zip(ended, self.rewards(ended), strict=True)}

    def attempt(self, task: Any) -> Any:
        """Make an attempt with the candidate's texts, as the runner does."""
        serving = self._serving
        with serving_prompts(serving):
            made = self._attempt(task)
        return _inside(made, serving) if inspect.isawaitable(made) else made

    def attempt_ended(self, event: Event) -> None:
        """Handle an event of the runner: an attempt is kept once it has ended, since others may be interrupted."""
        if isinstance(event, AttemptEnded) and event.task_id not in self._keys:
            return
        if isinstance(event, AttemptEnded) and event.stage != "retried":
            self._journal.write(self._key(event.stage, event.task_id), asdict(event))
        self._on_event(event)

    def _key(self, stage: str, task_id: Any) -> list[str]:
        return ["attempt", stage, named(self._serving), self._keys[task_id]]


def failures(ended: Iterable[AttemptEnded]) -> int:
    """Return how many attempts failed or got no reward."""
    return sum(one.reward is None for one in ended)


async def _inside(made: Any, serving: Mapping[str, PromptVersion]) -> Any:
    with serving_prompts(serving):
        return await made

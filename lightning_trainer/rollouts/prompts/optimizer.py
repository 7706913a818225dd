"""The optimizer: candidates are tried at tasks, and better texts proposed from what happened.

Source: Agrawal et al., GEPA: Reflective Prompt Evolution Can Outperform Reinforcement Learning, arXiv 2507.19457,
algorithm 1. A candidate is one version of each prompt. One of the frontier (``pareto.py``) is tried at a few feedback
tasks, and one of its prompts gets a new text made from these attempts; the child that earns more at the same tasks than
its parent is tried at all validation tasks and becomes a candidate itself.
"""

import hashlib
import inspect
import json
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Generic

import lightning_instrumentation as lt
from lightning_instrumentation.prompts.prompt import check_name, serving_prompts
from lightning_instrumentation.prompts.version import PromptVersion

from lightning_trainer.errors import LightningError, NotThereError
from lightning_trainer.rollouts.attempt import AttemptEnded, AttemptFunction, Event, Task, TaskT
from lightning_trainer.rollouts.daemon_client import daemon_of_client
from lightning_trainer.rollouts.prompts import pareto
from lightning_trainer.rollouts.prompts.candidates import Candidate, CandidateTried, Optimized, named
from lightning_trainer.rollouts.prompts.client import PromptClient, Proposed, why_unreached
from lightning_trainer.rollouts.prompts.journal import Journal
from lightning_trainer.rollouts.prompts.tasks import minibatches, search_tasks
from lightning_trainer.rollouts.run_name import checked_run, default_run
from lightning_trainer.rollouts.runner import Runner
from lightning_trainer.rollouts.step_runner import ends_in_one_line

_log = logging.getLogger(__name__)
_FLUSH_S = 30.0
_ARRIVES_S = 10.0
"""What a program has recorded comes after its end."""
_SOON_S = 2.0
"""How long it is waited for where there are other attempts that may say the same."""
_MOST_REFUSED = 5
"""Proposals that the daemon refuses one after the other: then it is over."""
_MOST_SHOWN = 64
"""Attempts that one proposal is made from."""
_MOST_ASKED = 32
"""Attempts that are looked through for the versions that the program has."""


class PromptOptimizer(Generic[TaskT]):
    """Finds better texts for prompts that an agent gets by ``lt.prompt``.

    ``prompts`` are their names, and ``attempt(task) -> reward`` is as a ``Runner``'s, a ``Command`` included. All
    attempts are recorded as evaluations: no policy is trained on them.

    Raises:
        LightningError: no prompt is named, one twice, or what is no name.
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
        retries: int = 0,
        seed: int = 0,
        failed_reward: float = 0.0,
        on_event: Callable[[Event | CandidateTried], None] = lambda event: None,
    ) -> None:
        """``retries`` is how often a failed attempt is made again, of which only the last one counts. ``failed_reward``
        is what an attempt counts that failed or got no reward; no more than the worst one that did not fail has earned
        so far."""
        self._names = [prompts] if isinstance(prompts, str) else list(prompts)
        if not self._names or len(set(self._names)) < len(self._names):
            raise LightningError(f"the prompts are {self._names}; name at least one, and each once")
        for prompt in self._names:
            try:
                check_name(prompt)
            except ValueError as error:
                raise LightningError(str(error)) from None
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
            retries=retries,
            on_event=self._ended,
        )
        self._run = name
        self._seed = seed
        self._chance = random.Random(seed)
        self._journal = Journal(None, "")
        self._worst = failed_reward
        """What a failed attempt counts."""
        self._on_event = on_event
        self._left = 0
        self._proposed = False
        self._reached: set[str] = set()
        """Prompts of which it is known whether their texts reach the program."""

    @ends_in_one_line("a search that has a journal goes on from it, and any other begins anew")
    def optimize(
        self,
        tasks: Sequence[TaskT],
        *,
        attempts: int,
        validation: Sequence[TaskT] | None = None,
        held_out: Sequence[TaskT] = (),
        minibatch: int = 3,
        perfect: float = 1.0,
        journal: str | Path | None = None,
    ) -> Optimized:
        """Look for better texts until the attempts are used up; nothing is served that was not (``use``).

        Args:
            tasks: those that texts are made from.
            attempts: how many are made at most, those at held-out tasks not counted.
            validation: tasks that candidates are compared at; by default every second one of ``tasks``.
            held_out: tasks that only what the program had and the best candidate are tried at, at the end.
            minibatch: how many tasks a text is made from.
            perfect: where all of a minibatch earn this, there is nothing to learn from it.
            journal: a file for what attempts earned and what was proposed: a search that finds there what it did before
                makes none of it again, and goes on, also with more ``attempts``. None: it begins anew each time.

        Raises:
            LightningError: the journal is another search's, there are too few tasks or attempts, the agent does not ask
                for the prompts, no attempt gets a reward, nothing can be proposed, or the daemon cannot be reached.
        """
        self._chance = random.Random(self._seed)
        among = search_tasks(tasks, validation, held_out, self._chance)
        feedback, validated = among.feedback, among.validation
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
        self._left, self._proposed = attempts, False
        self._reached.clear()
        ids = [[one.id for one in some] for some in (feedback, validated)]
        search = json.dumps([self._run, self._names, self._seed, minibatch, perfect, ids], default=str)
        self._journal = Journal(None if journal is None else Path(journal), hashlib.sha256(search.encode()).hexdigest())
        try:
            candidates = [self._base(validated)]
            self._search(candidates, feedback, validated, minibatch, perfect)
            best, made = max(candidates, key=lambda one: one.mean), attempts - self._left
            held_out_rewards = self._held_out(candidates[0], best, among.held_out)
        finally:
            self._journal.close()
        return Optimized(candidates[0], best, candidates, made, held_out_rewards)

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
        for number, batch in zip(range(rounds), minibatches(feedback, minibatch, self._chance), strict=False):
            if self._left < most:
                return
            index = pareto.drawn([one.validation for one in candidates], self._chance)
            parent = candidates[index]
            self._try_at(parent.versions, [one for one in batch if one.id not in parent.attempts], parent.attempts)
            before = self._rewards([parent.attempts[one.id] for one in batch])
            if min(before) >= perfect:
                continue
            name = self._names[number % len(self._names)]
            try:
                made = self._proposal(parent, name, batch)
                refused = 0
            except LightningError as error:
                refused += 1
                if refused < _MOST_REFUSED:
                    _log.warning("no new text for %s from these attempts: %s", name, error)
                    continue
                if not self._proposed:
                    raise
                _log.warning("there is no new text any more, and the search ends: %s", error)
                return
            child = {**parent.versions, name: made.version}
            if all(child != one.versions for one in candidates):
                self._try(child, made.made_by, candidates, index, batch, validated, fmean(before))

    def _try(
        self,
        child: Mapping[str, PromptVersion],
        made_by: str,
        candidates: list[Candidate],
        parent: int,
        batch: Sequence[Task],
        validated: Sequence[Task],
        before: float,
    ) -> None:
        """Try what was proposed, and keep it if it earns more than its parent did at the same tasks."""
        tried: dict[str, AttemptEnded] = {}
        self._try_at(child, batch, tried)
        # One that failed may have failed before it asked for the text.
        if ran := [one.attempt_id for one in tried.values() if one.error is None]:
            self._check_reached(child, candidates[parent].versions, ran)
        after = fmean(self._rewards(tried.values()))
        kept, told, failed = after > before, len(batch), _failed(tried.values())
        if kept:
            ended = self._validated(child, validated)
            scores = self._by_task(ended)
            candidates.append(Candidate(child, scores, parent, tried))
            after, told, failed = fmean(scores.values()), len(ended), _failed(ended)
        from_ = candidates[parent].name
        self._on_event(CandidateTried(named(child), from_, made_by, after, told, failed, kept, self._left))

    def _check_reached(
        self, child: Mapping[str, PromptVersion], before: Mapping[str, PromptVersion], attempts: Sequence[str]
    ) -> None:
        """Say, of the first new text of each prompt, if it does not reach the program: no text would be better then."""
        for name in [one for one in child if child[one] != before[one] and one not in self._reached]:
            self._reached.add(name)
            if self._journal.take(["reached", name]) is None:
                why = why_unreached(self._daemon, name, child[name].version, attempts, wait_s=_ARRIVES_S)
                if why is not None:
                    _log.warning("%s", why)
                self._journal.write(["reached", name], why is None)

    def _base(self, validated: Sequence[Task]) -> Candidate:
        """Try what the program has, and learn which versions of the prompts that is: from the first attempt, whose
        versions all others get then, or from those that follow."""
        versions: dict[str, PromptVersion] = {}
        ended: list[AttemptEnded] = []
        for tasks in filter(None, (validated[:1], validated[1:])):
            self._serving = versions
            ended += self._evaluate(tasks, "validation")
            if is_last := len(ended) == len(validated):
                self._check_rewarded(ended)
            missing = [name for name in self._names if name not in versions]
            versions = {**versions, **self._versions_in(ended, missing, is_last=is_last)}
        in_order = {name: versions[name] for name in self._names}
        base = Candidate(in_order, self._by_task(ended))
        self._score(in_order, "validation", base.validation)
        told = len(ended)
        self._on_event(CandidateTried(base.name, None, None, base.mean, told, _failed(ended), True, self._left))
        return base

    def _check_rewarded(self, ended: Sequence[AttemptEnded]) -> None:
        """Raise LightningError if no attempt got a reward."""
        if any(one.reward is not None for one in ended):
            return
        self._journal.begin_anew()
        none_given = "attempt(task) returned None each time; of a program the last line that it prints is the reward"
        why = next((one.error for one in ended if one.error), none_given)
        raise LightningError(f"none of {len(ended)} attempts got a reward, so no text is better than another: {why}")

    def _versions_in(
        self, ended: Sequence[AttemptEnded], names: Sequence[str], *, is_last: bool
    ) -> dict[str, PromptVersion]:
        """Return the versions of the prompts that attempts ran with; all have the same time to arrive.

        Raises:
            NotThereError: ``is_last``, and no attempt asked for one of them.
        """
        give_up = time.monotonic() + (_ARRIVES_S if is_last else _SOON_S)
        found: dict[str, PromptVersion] = {}
        best_first = sorted(ended, key=lambda one: one.reward is None)[:_MOST_ASKED]
        attempts = [one.attempt_id for one in best_first]
        for name in names:
            key = ["used", name, attempts]
            if (said := self._journal.take(key)) is None:
                try:
                    said = asdict(self._daemon.used_in(name, attempts, wait_s=max(0.0, give_up - time.monotonic())))
                except NotThereError:
                    if is_last:
                        self._journal.begin_anew()
                        raise
                    said = {}
                self._journal.write(key, said)
            if said:
                found[name] = PromptVersion(**said)
        return found

    def _proposal(self, parent: Candidate, name: str, batch: Sequence[Task]) -> Proposed:
        first = [parent.attempts[one.id] for one in batch]
        others = sorted(parent.attempts.values(), key=lambda one: self._rewards([one]), reverse=True)
        ids = dict.fromkeys(one.attempt_id for one in [*first, *others])
        seed = self._chance.randrange(1 << 31)
        shown, version = list(ids)[:_MOST_SHOWN], parent.versions[name].version
        key = ["proposal", name, version, shown, seed]
        if (said := self._journal.take(key)) is None:
            made = self._daemon.propose(name, version, shown, seed=seed)
            self._journal.write(key, asdict(made))
        else:
            made = Proposed(PromptVersion(**said["version"]), said["made_by"])
        self._proposed = True
        return made

    def _try_at(
        self, versions: Mapping[str, PromptVersion], tasks: Sequence[Task], tried: dict[str, AttemptEnded]
    ) -> None:
        if tasks:
            self._serving = versions
            tried.update((one.task_id, one) for one in self._evaluate(tasks, "feedback"))

    def _validated(self, versions: Mapping[str, PromptVersion], tasks: Sequence[Task]) -> list[AttemptEnded]:
        self._serving = versions
        ended = self._evaluate(tasks, "validation")
        self._score(versions, "validation", self._by_task(ended))
        return ended

    def _held_out(
        self, base: Candidate, best: Candidate, tasks: Sequence[Task]
    ) -> tuple[dict[str, float], dict[str, float]] | None:
        if not tasks:
            return None
        self._left += 2 * len(tasks)
        found = []
        for one in (base, best):
            self._serving = one.versions
            scores = self._by_task(self._evaluate(tasks, "held-out"))
            self._score(one.versions, "held-out", scores)
            found.append(scores)
            if best is base:
                break
        return found[0], found[-1]

    def _score(self, versions: Mapping[str, PromptVersion], stage: str, scores: Mapping[str, float]) -> None:
        for name, version in versions.items():
            self._daemon.put_score(name, version.version, stage=stage, mean=fmean(scores.values()), tasks=len(scores))

    def _evaluate(self, tasks: Sequence[Any], stage: str) -> list[AttemptEnded]:
        known: dict[str, AttemptEnded] = {}
        for task in tasks:
            if (said := self._journal.take(self._key(stage, task.id))) is not None:
                known[task.id] = replace(AttemptEnded(**said), task_id=task.id)
                self._on_event(known[task.id])
        if missing := [task for task in tasks if task.id not in known]:
            known.update((one.task_id, one) for one in self._runner.evaluated(missing, stage=stage))
            lt.flush(_FLUSH_S)
        ended = [known[task.id] for task in tasks]
        self._left -= len(ended)
        self._worst = min([self._worst, *(one.reward for one in ended if one.reward is not None)])
        return ended

    def _ended(self, event: Event) -> None:
        """What the runner calls: an attempt is kept as soon as it has ended, since others may be interrupted."""
        if isinstance(event, AttemptEnded) and event.stage != "retried":
            self._journal.write(self._key(event.stage, event.task_id), asdict(event))
        self._on_event(event)

    def _key(self, stage: str, task_id: str) -> list[str]:
        return ["attempt", stage, named(self._serving), task_id]

    def _rewards(self, ended: Iterable[AttemptEnded]) -> list[float]:
        return [self._worst if one.reward is None else one.reward for one in ended]

    def _by_task(self, ended: Sequence[AttemptEnded]) -> dict[str, float]:
        return {one.task_id: reward for one, reward in zip(ended, self._rewards(ended), strict=True)}

    def _attempt(self, task: Any) -> Any:
        serving = self._serving
        with serving_prompts(serving):
            made = self._given(task)
        return _inside(made, serving) if inspect.isawaitable(made) else made


def _failed(ended: Iterable[AttemptEnded]) -> int:
    return sum(one.reward is None for one in ended)


async def _inside(made: Any, serving: Mapping[str, PromptVersion]) -> Any:
    with serving_prompts(serving):
        return await made

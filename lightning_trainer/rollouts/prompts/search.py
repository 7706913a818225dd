"""One search: candidates are tried at tasks, and better texts are proposed from what happened.

Source: Agrawal et al., GEPA: Reflective Prompt Evolution Can Outperform Reinforcement Learning, arXiv 2507.19457,
algorithm 1. A candidate is one version of each prompt. One of the frontier (``pareto.py``) is tried at a few feedback
tasks, and one of its prompts gets a new text made from these attempts; the child that earns more at the same tasks than
its parent is tried at all validation tasks and becomes a candidate itself.
"""

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from lightning_instrumentation.prompts.version import PromptVersion

from lightning_trainer.errors import LightningError
from lightning_trainer.rollouts.attempt import AttemptEnded, Task
from lightning_trainer.rollouts.prompts import pareto
from lightning_trainer.rollouts.prompts.candidates import Candidate, CandidateTried, Optimized, named
from lightning_trainer.rollouts.prompts.client import NoProposalError, PromptClient, Spent
from lightning_trainer.rollouts.prompts.evaluator import CandidateEvaluator, failures
from lightning_trainer.rollouts.prompts.journal import Journal
from lightning_trainer.rollouts.prompts.tasks import SearchTasks, minibatches
from lightning_trainer.rollouts.prompts.used_versions import UsedVersions

_log = logging.getLogger(__name__)
_MOST_REFUSED = 5
"""After this many refused proposals in a row, the search is over."""
_MOST_SHOWN = 64
"""The most attempts that one proposal is made from."""
_SPENT = ["spent"]
"""Key of the journal's lines on what proposals have spent."""


class GepaSearch:
    """A search for better texts of prompts.

    Args:
        names: names of the prompts.
        chance: draws parents and minibatches.
        minibatch: how many tasks a text is made from.
        perfect: if all attempts of a minibatch earn this, there is nothing to learn from it.
    """

    def __init__(
        self,
        names: Sequence[str],
        tasks: SearchTasks,
        daemon: PromptClient,
        evaluator: CandidateEvaluator[Any],
        journal: Journal,
        chance: random.Random,
        *,
        minibatch: int,
        perfect: float,
        on_event: Callable[[CandidateTried], None],
    ) -> None:
        self._names = names
        self._tasks = tasks
        self._daemon = daemon
        self._evaluator = evaluator
        self._journal = journal
        self._chance = chance
        self._minibatch = minibatch
        self._perfect = perfect
        self._on_event = on_event
        self._used = UsedVersions(daemon, journal)
        self._candidates: list[Candidate] = []
        self.spent = Spent()
        """What proposals have used so far, including those of the search that this one continues."""
        self._proposed = False
        """Whether there was any proposal: if so, a lack of further ones ends the search without an error."""

    def run(self, attempts: int) -> Optimized:
        """Search until the attempts are used up, or no more texts are proposed.

        Raises:
            LightningError: as for ``PromptOptimizer.optimize``.
        """
        self._evaluator.begin(self._journal, attempts)
        while (before := self._journal.take(_SPENT)) is not None:
            self.spent += Spent(**before)
        self._candidates.append(self._base())
        self._search()
        best, made = max(self._candidates, key=lambda one: one.mean), attempts - self._evaluator.attempts_left
        base = self._candidates[0]
        return Optimized(base, best, self._candidates, made, self._held_out(base, best), self.spent)

    def _base(self) -> Candidate:
        """Try the versions that the program has, and learn which ones these are: from the first attempt, whose versions
        all others then get, or from the attempts that follow. A search that continues makes the first attempt again,
        because the program may have another default by now."""
        validated = self._tasks.validation
        versions: dict[str, PromptVersion] = {}
        ended: list[AttemptEnded] = []
        for tasks in filter(None, (validated[:1], validated[1:])):
            ended += self._evaluator.evaluate(versions, tasks, "validation")
            if is_last := len(ended) == len(validated):
                self._check_rewarded(ended)
            missing = [name for name in self._names if name not in versions]
            versions = {**versions, **self._used.versions_in(ended, missing, is_last=is_last)}
            if tasks[0] is validated[0] and self._evaluator.taken:
                self._used.check_same(versions, self._evaluator.made_again(tasks[0]))
        in_order = {name: versions[name] for name in self._names}
        base = Candidate(in_order, self._evaluator.rewards_by_task(ended))
        self._put_scores(in_order, "validation", base.validation)
        self._tell(in_order, None, None, base.mean, ended, kept=True)
        return base

    def _check_rewarded(self, ended: Sequence[AttemptEnded]) -> None:
        """Raise LightningError if no attempt got a reward."""
        if any(one.reward is not None for one in ended):
            return
        self._journal.begin_anew()
        none_given = "attempt(task) returned None each time; of a program the last line that it prints is the reward"
        why = next((one.error for one in ended if one.error), none_given)
        raise LightningError(f"none of {len(ended)} attempts got a reward, so no text is better than another: {why}")

    def _search(self) -> None:
        refused = 0
        most = 2 * self._minibatch + len(self._tasks.validation)
        rounds = 100 * len(self._tasks.feedback)  # so that a search whose rounds need no attempts ends, too
        batches = minibatches(self._tasks.feedback, self._minibatch, self._chance)
        for number, batch in zip(range(rounds), batches, strict=False):
            if self._evaluator.attempts_left < most:
                return
            index = pareto.drawn([one.validation for one in self._candidates], self._chance)
            parent = self._candidates[index]
            self._try_at(parent.versions, [one for one in batch if one.id not in parent.attempts], parent.attempts)
            before = self._evaluator.rewards([parent.attempts[one.id] for one in batch])
            if min(before) >= self._perfect:
                continue
            name = self._names[number % len(self._names)]
            try:
                version, made_by = self._proposal(parent, name, batch)
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
            child = {**parent.versions, name: version}
            if all(child != one.versions for one in self._candidates):
                self._try(child, made_by, index, batch, fmean(before))

    def _proposal(self, parent: Candidate, name: str, batch: Sequence[Task]) -> tuple[PromptVersion, str]:
        """Return a version that may be better than the parent's, and the kind of its proposer."""
        first = [parent.attempts[one.id] for one in batch]
        others = sorted(parent.attempts.values(), key=lambda one: self._evaluator.rewards([one]), reverse=True)
        ids = dict.fromkeys(one.attempt_id for one in [*first, *others])
        seed = self._chance.randrange(1 << 31)
        shown, version = list(ids)[:_MOST_SHOWN], parent.versions[name].version
        key = ["proposal", name, version, shown, seed]
        if (said := self._journal.take(key)) is not None:
            self._proposed = True
            return PromptVersion(**said["version"]), said["made_by"]
        try:
            made = self._daemon.propose(name, version, shown, seed=seed)
        except NoProposalError as error:
            self._count(error.spent)
            raise
        self._count(made.spent)
        self._journal.write(key, {"version": asdict(made.version), "made_by": made.made_by})
        self._proposed = True
        return made.version, made.made_by

    def _count(self, spent: Spent) -> None:
        """Count what was spent, and keep it in a line of its own in the journal, because a search that continues might
        not ask for the same proposal again."""
        self.spent += spent
        self._journal.write(_SPENT, asdict(spent))

    def _try(
        self, child: Mapping[str, PromptVersion], made_by: str, parent: int, batch: Sequence[Task], before: float
    ) -> None:
        """Try the child that was proposed, and keep it if it earns more than its parent did at the same tasks."""
        tried: dict[str, AttemptEnded] = {}
        self._try_at(child, batch, tried)
        # An attempt that failed may have done so before it asked for the text.
        if ran := [one.attempt_id for one in tried.values() if one.error is None]:
            self._used.check_reached(child, self._candidates[parent].versions, ran)
        ended = list(tried.values())
        mean = fmean(self._evaluator.rewards(ended))
        kept = mean > before
        if kept:
            ended = self._evaluator.evaluate(child, self._tasks.validation, "validation")
            scores = self._evaluator.rewards_by_task(ended)
            self._put_scores(child, "validation", scores)
            self._candidates.append(Candidate(child, scores, parent, tried))
            mean = fmean(scores.values())
        self._tell(child, self._candidates[parent].name, made_by, mean, ended, kept=kept)

    def _try_at(
        self, versions: Mapping[str, PromptVersion], tasks: Sequence[Task], tried: dict[str, AttemptEnded]
    ) -> None:
        if tasks:
            tried.update((one.task_id, one) for one in self._evaluator.evaluate(versions, tasks, "feedback"))

    def _held_out(self, base: Candidate, best: Candidate) -> tuple[dict[str, float], dict[str, float]] | None:
        tasks = self._tasks.held_out
        if not tasks:
            return None
        self._evaluator.attempts_left += 2 * len(tasks)
        found = []
        for one in (base, best):
            scores = self._evaluator.rewards_by_task(self._evaluator.evaluate(one.versions, tasks, "held-out"))
            self._put_scores(one.versions, "held-out", scores)
            found.append(scores)
            if best is base:
                break
        return found[0], found[-1]

    def _put_scores(self, versions: Mapping[str, PromptVersion], stage: str, scores: Mapping[str, float]) -> None:
        for name, version in versions.items():
            self._daemon.put_score(name, version.version, stage=stage, mean=fmean(scores.values()), tasks=len(scores))

    def _tell(
        self,
        versions: Mapping[str, PromptVersion],
        parent: str | None,
        made_by: str | None,
        mean: float,
        ended: Sequence[AttemptEnded],
        *,
        kept: bool,
    ) -> None:
        told, failed, left = len(ended), failures(ended), self._evaluator.attempts_left
        self._on_event(CandidateTried(named(versions), parent, made_by, mean, told, failed, kept, left))

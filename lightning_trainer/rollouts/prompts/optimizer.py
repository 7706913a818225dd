"""The optimizer of prompts, as programs and the command line use it; the search itself is ``search.py``."""

import hashlib
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic

from lightning_instrumentation.prompts.prompt import check_name

from lightning_trainer.errors import LightningError
from lightning_trainer.rollouts.attempt import AttemptFunction, Event, TaskT
from lightning_trainer.rollouts.daemon_client import daemon_of_client
from lightning_trainer.rollouts.prompts.candidates import Candidate, CandidateTried, Optimized
from lightning_trainer.rollouts.prompts.client import PromptClient, Spent
from lightning_trainer.rollouts.prompts.evaluator import CandidateEvaluator
from lightning_trainer.rollouts.prompts.journal import Journal
from lightning_trainer.rollouts.prompts.search import GepaSearch
from lightning_trainer.rollouts.prompts.tasks import search_tasks
from lightning_trainer.rollouts.run_name import checked_run, default_run
from lightning_trainer.rollouts.step_runner import ends_in_one_line


class PromptOptimizer(Generic[TaskT]):
    """Finds better texts for prompts that an agent gets from ``lt.prompt``.

    ``prompts`` are the prompts' names, and ``attempt(task) -> reward`` is as for a ``Runner``; it may be a ``Command``.
    All attempts are recorded as evaluations: no policy is trained on them.

    Raises:
        LightningError: no prompt is named, one is named twice, or a name is not valid.
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
        """``retries`` is how often a failed attempt is made again; only the last one counts. ``failed_reward`` is the
        reward counted for an attempt that failed or got none; if another attempt has earned less so far, the lowest
        reward is counted instead."""
        self._names = [prompts] if isinstance(prompts, str) else list(prompts)
        if not self._names or len(set(self._names)) < len(self._names):
            raise LightningError(f"the prompts are {self._names}; name at least one, and each once")
        for prompt in self._names:
            try:
                check_name(prompt)
            except ValueError as error:
                raise LightningError(str(error)) from None
        self._daemon = PromptClient(daemon_of_client(endpoint))
        self._run = default_run(self._names, attempt) if run is None else checked_run(run)
        self._seed = seed
        self._on_event = on_event
        self._search: GepaSearch | None = None
        self._evaluator: CandidateEvaluator[TaskT] = CandidateEvaluator(
            attempt,
            run=self._run,
            endpoint=endpoint,
            concurrency=concurrency,
            timeout_s=timeout_s,
            retries=retries,
            failed_reward=failed_reward,
            on_event=on_event,
        )

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
        """Search for better texts until the attempts are used up; what is served does not change (see ``use``).

        Args:
            tasks: tasks that texts are made from.
            attempts: how many attempts are made at most, not counting those at held-out tasks.
            validation: tasks that candidates are compared at; by default every second one of ``tasks``.
            held_out: tasks that only the program's own versions and the best candidate are tried at, at the end.
            minibatch: how many tasks a text is made from.
            perfect: if all attempts of a minibatch earn this, there is nothing to learn from it.
            journal: a file that keeps the rewards of attempts and the proposed texts: a search repeats nothing that it
                finds there, and continues, also with more ``attempts``. It makes one attempt that does not count, to
                check that the program still has the same default, and tries tasks again whose content has changed.
                None: every search begins from the start.

        Raises:
            LightningError: the journal is of another search or another default, there are too few tasks or attempts,
                the agent does not ask for the prompts, no attempt gets a reward, nothing can be proposed, or the daemon
                cannot be reached.
        """
        chance = random.Random(self._seed)
        among = search_tasks(tasks, validation, held_out, chance)
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
        ids = [[one.id for one in some] for some in (feedback, validated)]
        search = json.dumps([self._run, self._names, self._seed, minibatch, perfect, ids], default=str)
        kept = Journal(None if journal is None else Path(journal), hashlib.sha256(search.encode()).hexdigest())
        try:
            self._search = GepaSearch(
                self._names,
                among,
                self._daemon,
                self._evaluator,
                kept,
                chance,
                minibatch=minibatch,
                perfect=perfect,
                on_event=self._on_event,
            )
            return self._search.run(attempts)
        finally:
            kept.close()

    @property
    def spent(self) -> Spent:
        """Return calls and tokens of the model that writes texts in the newest search, even if it was interrupted."""
        return Spent() if self._search is None else self._search.spent

    def use(self, candidate: Candidate) -> None:
        """Serve a candidate's texts to every program that asks for the prompts with the same defaults.

        Raises:
            LightningError: the daemon cannot be reached, or no longer has the texts.
        """
        for name, version in candidate.versions.items():
            self._daemon.use(name, version.version)

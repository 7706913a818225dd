"""Training, evaluating and recording: attempts at tasks, made as the schedule of the steps asks for them.

Ctrl-C ends any of these with one line and exit status 130 (``steps/schedule.py`` says where a training run continues);
in a notebook or a pytest test, it ends them with the line and the ``KeyboardInterrupt``.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Generic

from lightning_trainer.errors import LightningError
from lightning_trainer.rollouts.attempt import AttemptEnded, AttemptFunction, Event, StepEnded, Task, TaskT, run_attempt
from lightning_trainer.rollouts.curriculum import Curriculum
from lightning_trainer.rollouts.daemon_client import DaemonClient, daemon_of_client
from lightning_trainer.rollouts.evaluation_journal import EvaluationJournal, Versions
from lightning_trainer.rollouts.run_name import checked_run, default_run, held_run
from lightning_trainer.rollouts.steps.schedule import Schedule, Work
from lightning_trainer.rollouts.steps.step_watch import Arrivals, StepWatch, check_recording, reward_mean
from lightning_trainer.rollouts.task_file import listed_tasks, task_of
from lightning_trainer.rollouts.team import TeamClient
from lightning_trainer.rollouts.worker_pool import WorkerPool

_log = logging.getLogger(__name__)
_INTERRUPTED = 130
"""128 plus the number of SIGINT."""
_TEST = "PYTEST_CURRENT_TEST"
_FLUSH_S = 30.0
_NO_POLICY = "recorded"
"""Stands for the policies in the default name of a run without any."""


@contextmanager
def ends_in_one_line(then: str = "start it again to go on from there") -> Iterator[None]:
    """Turn a ``KeyboardInterrupt`` into a line on stderr and ``SystemExit(130)``: what shells expect, and no traceback.

    ``finally`` blocks run as always. Attempts that have ended by then are recorded; those in progress do not count, and
    a run that is started again repeats them. ``then`` is the end of the line: what the next start does.

    If something around the program continues after an interrupt, the ``KeyboardInterrupt`` is passed on to it: IPython
    takes a ``SystemExit`` for a mistake, and pytest takes it for one failed test.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        line = f"interrupted: what has ended is recorded; {then}"
        if not _goes_on():
            print(line, file=sys.stderr)
            raise SystemExit(_INTERRUPTED) from None
        print("; ".join([line, *getattr(interrupt, "__notes__", ())]), file=sys.stderr)
        raise


def _goes_on() -> bool:
    """Whether this runs in IPython, such as a notebook's kernel, or in a pytest test."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return (shell is not None and shell() is not None) or ("pytest" in sys.modules and _TEST in os.environ)


class StepRunner(Generic[TaskT]):
    """The base of all runners, whatever their attempts are; ``Runner`` explains the arguments."""

    def __init__(
        self,
        policy: str | Sequence[str],
        attempt: AttemptFunction[TaskT],
        *,
        baseline: AttemptFunction[TaskT] | None = None,
        run: str | None = None,
        endpoint: str | None = None,
        concurrency: int = 64,
        timeout_s: float = 120.0,
        retries: int = 0,
        on_event: Callable[[Event], None] = lambda event: None,
        tasks: Callable[[int, int], Sequence[TaskT]] | None = None,
        curriculum: Curriculum[TaskT] | None = None,
    ) -> None:
        if concurrency < 1 or retries < 0:
            raise LightningError(
                f"concurrency is {concurrency} and retries is {retries}; at least 1 attempt runs at once, and a failed "
                "one is made again 0 times or more"
            )
        reached = daemon_of_client(endpoint)
        names = [policy] if isinstance(policy, str) else policy
        members = [
            DaemonClient(reached.endpoint, name, token=reached.token, ca_file=reached.ca_file)
            for name in names or (None,)
        ]
        self._policies = names
        self._daemon = members[0] if len(members) == 1 else TeamClient(members)
        self._reached = reached
        self._named = run is not None
        self._run = default_run(names or (_NO_POLICY,), attempt) if run is None else checked_run(run)
        self._attempt = attempt
        self._baseline = baseline
        self._concurrency = concurrency
        self._timeout_s = timeout_s
        self._retries = retries
        self._on_event = on_event
        self._tasks = tasks
        self._curriculum = curriculum
        self.run_number = 1
        """Which of the runs of one name this is, set by ``train``: 2 or more if others of its program are running."""
        self._blind = False
        """Whether the warning that the curriculum learns nothing was logged."""

    @ends_in_one_line()
    def steps_done(self) -> int:
        """Return how many steps the policy has done: 0 before its first, and more if a run is continued or over.

        Raises:
            LightningError: the daemon cannot be reached, or has no such policy.
        """
        return self._daemon.policy()["steps_done"]

    @ends_in_one_line()
    def train(self, tasks_of_step: Callable[[int], Sequence[TaskT]] | None = None, *, steps: int) -> None:
        """Run until the policy has done ``steps`` steps, with ``group_size`` attempts at each of
        ``tasks_of_step(step)``.

        Steps are the policy's: those trained on other runs' groups count, too, so this run then makes fewer.

        With a curriculum, ``tasks_of_step`` returns more tasks than a step has groups. With dynamic sampling, a step
        that lacks groups takes those of the next one, so ``tasks_of_step`` is also called for steps beyond the last.

        Raises:
            LightningError: the tasks do not make the step that the daemon waits for, the policy needs a baseline and
                there is none, a curriculum gets no tasks, another process holds the run's name, the daemon cannot be
                reached, or attempts do not reach it.
            TrainingError: training stopped before the last step, or all attempts of a step failed.
        """
        if not self._policies:
            raise LightningError("there is no policy to train; name it, as in Runner('my-policy', attempt)")
        if tasks_of_step is not None and not callable(tasks_of_step):
            raise LightningError(
                f"the tasks to train on are a {type(tasks_of_step).__name__}; give a function that returns those of a "
                "step, as in train(lambda step: tasks, steps=...)"
            )
        check_recording()
        self._daemon.wait_until_there()
        status = self._daemon.policy()
        self._check(status)
        source, per_step = self._tasks, status["groups_per_step"]
        if tasks_of_step is None:
            if source is None:
                raise LightningError("there are no tasks to train on; call train(tasks_of_step, steps=...)")
            if self._curriculum is not None:
                raise LightningError(
                    "the curriculum has nothing to choose from: the environment's own tasks have no kind; call "
                    f"train(tasks_of_step, steps=...) with more than {per_step} tasks of several kinds for each step"
                )
            tasks_of_step = lambda step: source(step, per_step)  # noqa: E731
        if status["steps_done"] >= steps:
            _log.warning("%d steps are done already; steps=%d is their total", status["steps_done"], steps)
            return
        with self._held() as run:
            self.run_number = int(run[len(self._run) + 1 :] or 1)
            self._train(run, status, tasks_of_step, steps)

    def _held(self) -> AbstractContextManager[str]:
        endpoint, token, ca_file = self._reached
        return held_run(endpoint, self._run, token=token, ca_file=ca_file, numbered=not self._named)

    def _check(self, status: dict) -> None:
        """Raise LightningError, with a sentence, if the policy could not be trained with these attempts."""
        if status["needs_baseline"] and self._baseline is None:
            raise LightningError(
                "the policy's advantage estimator compares attempts with a greedy one at the same task, and the runner "
                "has none; give it one as Runner(policy, attempt, baseline=greedy_attempt)"
            )

    def _as_task(self, given: Any) -> Task:
        """Return the task that a mapping stands for; anything with an id is one already."""
        return task_of(given)

    def _train(self, run: str, status: dict, tasks_of_step: Callable[[int], Sequence[TaskT]], steps: int) -> None:
        as_tasks = lambda step: [*map(self._as_task, listed_tasks(tasks_of_step(step)))]  # noqa: E731
        schedule = Schedule(self._daemon, run, status, as_tasks, steps, self._curriculum)
        watch = StepWatch(status, Arrivals(partial(self._daemon.groups, f"{run}/step-"), self._reached.endpoint))
        ends: list[float] = []
        rewards: list[float | None] = []

        def on_attempt(attempt: AttemptEnded) -> None:
            watch.attempt_ended(attempt)
            self._on_event(attempt)
            ends.append(time.monotonic())
            if attempt.stage == "train" and attempt.error is None:
                rewards.append(attempt.reward)

        def attempted(work: Work) -> AttemptEnded:
            return self._attempted(work, on_attempt, pool)

        began = time.monotonic()
        with WorkerPool(attempted, self._concurrency) as pool:
            while (done := schedule.done) < steps:
                for batch in schedule.due():
                    pool.add(batch)
                status = self._daemon.wait_for_step(done + 1, groups_wanted=status["groups_wanted"])
                if not schedule.heard(status):
                    watch.check_arrival()
                    continue
                now = time.monotonic()
                rolled_out = max(ends, default=now)
                ends.clear()
                self._say_if_blind(done + 1, rewards)
                rewards.clear()
                ended = reward_mean(status, done + 1), status["live_version"]
                self._on_event(StepEnded(done + 1, *ended, rolled_out - began, now - rolled_out))
                watch.step_ended(done + 1, status)
                began = now
            if not status["dynamic_sampling"]:
                # Groups are left over only if other runs brought some, too; later steps take them if they are complete.
                pool.wait()

    def _say_if_blind(self, step: int, rewards: Sequence[float | None]) -> None:
        """Warn once if the curriculum learns nothing; ``rewards`` are what the attempts of a step returned."""
        if self._curriculum is None or self._blind or not rewards or any(reward is not None for reward in rewards):
            return
        self._blind = True
        _log.warning(
            "the curriculum saw no reward in step %d: it learns from what attempt(task) returns or a program prints as "
            '"reward", and not from named rewards, lt.reward(...), judges or feedback; so far it chooses at random',
            step,
        )

    def evaluate(
        self, tasks: Sequence[TaskT], *, stage: str, journal: str | PathLike[str] | None = None
    ) -> list[AttemptEnded]:
        """Run one attempt per task, recorded and never trained, and return the results in the order of the tasks.

        Like ``train``, this waits for a daemon that is starting. Unlike ``train``, it tries every task, however often
        that was tried before; with a ``journal`` (a file), an interrupted evaluation continues, and its earlier results
        (``evaluation_journal.py`` says which) are also returned and passed to ``on_event``.

        Raises:
            LightningError: a task has no id, the daemon cannot be reached, or has no such policy, or the journal cannot
                be used.
        """
        if journal is None:
            with ends_in_one_line("started again, the evaluation tries every task anew"):
                return self.evaluated(tasks, stage=stage)
        with ends_in_one_line(f"start it again to go on from {fspath(journal)}"):
            return self._continued(tasks, stage, Path(journal))

    def evaluated(self, tasks: Sequence[TaskT], *, stage: str) -> list[AttemptEnded]:
        """Do as ``evaluate`` does without a journal, for callers that themselves say how they continue after Ctrl-C."""
        return self._run_all(self._evaluation(tasks, stage))

    def _evaluation(self, tasks: Sequence[TaskT], stage: str) -> list[Work]:
        named = [*map(self._as_task, listed_tasks(tasks))]
        self._daemon.wait_until_there()
        return [Work(task, f"{self._run}/{stage}/{task.id}", stage, None, "evaluate") for task in named]

    def _continued(self, tasks: Sequence[TaskT], stage: str, path: Path) -> list[AttemptEnded]:
        works = self._evaluation(tasks, stage)
        about = {"run": self._run, "name": stage, **self._settings()}
        with EvaluationJournal(path, about, self._live_versions) as journal:
            results = [journal.take(work.task) for work in works]
            there = [result for result in results if result is not None]
            if there:
                _log.warning("%s: %d of %d were there already, in %s", stage, len(there), len(works), path)
            for result in there:
                self._on_event(result)
            left = [work for work, result in zip(works, results, strict=True) if result is None]
            others = journal.ids_left()
            if changed := sum(str(work.task.id) in others for work in left):
                _log.warning("%s: tasks of another content than in %s, which are tried anew: %d", stage, path, changed)
            made = iter(self._run_all(left, journal.keep))
            return [next(made) if result is None else result for result in results]

    def _live_versions(self) -> Versions:
        """Return the versions that an evaluation measures."""
        return self._daemon.live_versions()

    def _settings(self) -> dict[str, Any]:
        """Return further settings that distinguish an evaluation from others of the same name."""
        return {}

    @ends_in_one_line()
    def record(self, tasks: Sequence[TaskT], *, attempts: int) -> list[AttemptEnded]:
        """Run until each task has that many attempts, a group to make a dataset from; no step ever takes them.

        Attempts that the daemon has from an earlier part of the run count. The results are those of the attempts made
        now, in the order of the tasks.

        Raises:
            LightningError: there are no attempts to make, tasks have no id or share one, another process holds the
                run's name, or the daemon cannot be reached, has no such policy, or attempts do not reach it.
        """
        named = [*map(self._as_task, listed_tasks(tasks))]
        different = len({task.id for task in named})
        if attempts < 1 or different < len(named):
            raise LightningError(
                f"attempts is {attempts}, at {len(named)} tasks with {different} different ids; "
                "record at least 1 attempt at each, and give every task an id of its own"
            )
        check_recording()
        self._daemon.wait_until_there()
        with self._held() as run:
            recorded = partial(self._daemon.recorded, f"{run}/record/")
            there, arrivals = recorded(), Arrivals(recorded, self._reached.endpoint)
            works = [
                Work(task, group_id, "record", None, "record")
                for task in named
                for group_id in [f"{run}/record/{task.id}"]
                for _ in range(attempts - there.get(group_id, 0))
            ]
            if not works:
                _log.warning("all of it is recorded already; attempts=%d is the total of each task", attempts)
            ended = self._run_all(works)
            arrivals.check(len(ended), wait_s=_FLUSH_S)
            return ended

    def _run_all(
        self, works: Sequence[Work], keep: Callable[[Task, AttemptEnded], None] = lambda task, ended: None
    ) -> list[AttemptEnded]:
        def run(work: Work) -> AttemptEnded:
            ended = self._attempted(work, self._on_event, pool)
            keep(work.task, ended)
            return ended

        with WorkerPool(run, self._concurrency) as pool:
            return [future.result() for future in pool.add(works).futures]

    def _attempted(self, work: Work, on_attempt: Callable[[AttemptEnded], None], pool: WorkerPool) -> AttemptEnded:
        """Run an attempt, and make it again if it fails. An attempt that ends after the run has ended, such as a
        program that was killed with it, does not count: the next start of the run makes it again."""
        attempt = self._baseline if work.mode == "baseline" and self._baseline else self._attempt
        for left in range(self._retries, -1, -1):
            ended = run_attempt(
                attempt,
                work.task,
                stage=work.stage,
                step=work.step,
                group_id=work.group_id,
                mode=work.mode,
                timeout_s=self._timeout_s,
                replaced=lambda failed, left=left: pool.ended or (failed and left > 0),
                policies=() if work.mode in ("evaluate", "record") else self._policies,
            )
            if ended.stage == "retried" and pool.ended:
                break
            if self._curriculum is not None and ended.stage == "train" and ended.reward is not None:
                self._curriculum.saw(work.task, ended.reward)
            on_attempt(ended)
            if ended.stage != "retried":
                break
        return ended

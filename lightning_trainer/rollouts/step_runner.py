"""Training and evaluation step by step: which attempts are run when.

Attempts of step ``k`` start once the daemon has done step ``k - 1 - max_staleness``. With 0 this is synchronous: all of
a step is sampled by the version that the previous step published. With more, agents go on while the trainer trains, and
the group that is complete first is trained first: a slow attempt does not hold up the others. This is the admission
rule of AReaL (Fu et al. 2025, arXiv 2505.24298, equation 3), applied to groups. A step that the daemon takes from a
file (``[[policy.stage]] data``) has no attempts.

An interrupted run resumes where it was: the daemon says how many steps are done and which attempts it has, by the run's
name, with which every group id begins. Other runs of the same policy may go on at the same time: a step takes the
groups that are complete first, and each run keeps as many in flight as a step needs, so none waits for another. For a
group that no step will take (``lost_groups.py``) it begins another. Ctrl-C ends it with one line and exit status 130.
"""

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import chain
from typing import Generic, NamedTuple

from lightning_trainer.errors import LightningError
from lightning_trainer.rollouts.attempt import AttemptEnded, AttemptFunction, Event, StepEnded, TaskT, run_attempt
from lightning_trainer.rollouts.curriculum import Curriculum
from lightning_trainer.rollouts.daemon_client import DaemonClient, daemon_of_client
from lightning_trainer.rollouts.lost_groups import LostGroups
from lightning_trainer.rollouts.run_name import checked_run, default_run, held_run
from lightning_trainer.rollouts.step_watch import Arrivals, StepWatch, check_recording, reward_mean, with_attempts
from lightning_trainer.rollouts.team import TeamClient
from lightning_trainer.rollouts.worker_pool import WorkerPool

_log = logging.getLogger(__name__)
_INTERRUPTED = 130
"""128 plus the number of SIGINT."""
_FLUSH_S = 30.0
_NO_POLICY = "recorded"
"""In the default name of a run of no policy."""


@contextmanager
def ends_in_one_line(then: str = "start it again to go on from there") -> Iterator[None]:
    """Turn a ``KeyboardInterrupt`` into a line on stderr and ``SystemExit(130)``: what shells expect, and no traceback.

    ``finally`` blocks run as always. Attempts that have ended by then are recorded; those in progress do not count, and
    a run that is started again repeats them. ``then`` is the end of the line: what the next start does.
    """
    try:
        yield
    except KeyboardInterrupt:
        print(f"interrupted: what has ended is recorded; {then}", file=sys.stderr)
        raise SystemExit(_INTERRUPTED) from None


class _Work(NamedTuple, Generic[TaskT]):
    task: TaskT
    group_id: str
    stage: str
    step: int | None
    mode: str


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
        """Which of the runs of one name this is, as ``train`` learns: 2 and so on beside others of the same program."""
        self._blind = False
        """Whether it was said that the curriculum learns nothing."""

    @ends_in_one_line()
    def steps_done(self) -> int:
        """Return how many steps the policy has done: 0 before its first, and more where a run goes on or is over.

        Raises:
            LightningError: the daemon cannot be reached, or has no such policy.
        """
        return self._daemon.policy()["steps_done"]

    @ends_in_one_line()
    def train(self, tasks_of_step: Callable[[int], Sequence[TaskT]] | None = None, *, steps: int) -> None:
        """Run until the policy has done ``steps`` steps, ``group_size`` attempts at each of ``tasks_of_step(step)``.

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
        """Refuse, in a sentence, a policy that could not be trained with these attempts."""
        if status["needs_baseline"] and self._baseline is None:
            raise LightningError(
                "the policy's advantage estimator compares attempts with a greedy one at the same task, and the runner "
                "has none; give it one as Runner(policy, attempt, baseline=greedy_attempt)"
            )

    def _train(self, run: str, status: dict, tasks_of_step: Callable[[int], Sequence[TaskT]], steps: int) -> None:
        done, ahead, per_step = status["steps_done"], status["max_staleness"] or 0, status["groups_per_step"]
        before, started = self._where_it_was(run, status, done, ahead)
        begun = before
        lost = LostGroups(self._daemon, run, groups_per_step=per_step)
        waiting: list[tuple[str, list[_Work[TaskT]]]] = []
        in_flight: set[str] = set()
        ends: list[float] = []
        rewards: list[float | None] = []
        watch = StepWatch(status, Arrivals(partial(self._daemon.groups, f"{run}/step-"), self._reached.endpoint))

        def on_attempt(attempt: AttemptEnded) -> None:
            watch.attempt_ended(attempt)
            self._on_event(attempt)
            ends.append(time.monotonic())
            if attempt.stage == "train" and attempt.error is None:
                rewards.append(attempt.reward)

        def attempted(work: _Work[TaskT]) -> AttemptEnded:
            return self._attempted(work, on_attempt, pool)

        began = time.monotonic()
        with WorkerPool(attempted, self._concurrency) as pool:
            while done < steps:
                # Groups that other runs have in flight do not count: they may take any time.
                taken = self._daemon.groups(f"{run}/step-", taken_until=done)
                in_flight -= taken.keys()
                replaced = lost.look(in_flight, taken, done + 1)
                in_flight -= replaced
                wanted = self._daemon.used_up(f"{run}/step-", taken_until=done) - len(replaced)
                wanted += status["groups_wanted"] * with_attempts(status, done + 1, done + 1)
                wanted += per_step * with_attempts(status, done + 2, min(done + 1 + ahead, steps))
                # Whole steps, and just as many groups beyond as were lost: what no step waits for would grow old.
                most = before - (before - wanted) // per_step * per_step + len(replaced)
                while begun < most:
                    if not waiting:
                        started += 1
                        if not with_attempts(status, started, started):
                            continue
                        tasks = self._chosen(run, [*tasks_of_step(started)], started, status)
                        waiting = self._groups(run, tasks, started, status, taken)
                    now, waiting = waiting[: most - begun], waiting[most - begun :]
                    begun += len(now)
                    in_flight |= {group_id for group_id, _ in now} - taken.keys()
                    groups = [works for _, works in now]
                    for batch in groups if ahead else [list(chain.from_iterable(groups))]:
                        pool.add(batch)
                status = self._daemon.wait_for_step(done + 1, groups_wanted=status["groups_wanted"])
                if status["steps_done"] <= done:
                    watch.check_arrival()
                    continue
                done += 1
                now = time.monotonic()
                rolled_out = max(ends, default=now)
                ends.clear()
                self._say_if_blind(done, rewards)
                rewards.clear()
                self._on_event(
                    StepEnded(
                        done,
                        reward_mean(status, done),
                        status["live_version"],
                        rolled_out - began,
                        now - rolled_out,
                    )
                )
                watch.step_ended(done, status)
                began = now
            if not status["dynamic_sampling"]:
                # Groups are left only if other runs brought some, too: later steps take them, if they are complete.
                pool.wait()

    def _say_if_blind(self, step: int, rewards: Sequence[float | None]) -> None:
        """Say once that the curriculum learns nothing; ``rewards`` are what the attempts of a step returned."""
        if self._curriculum is None or self._blind or not rewards or any(reward is not None for reward in rewards):
            return
        self._blind = True
        _log.warning(
            "the curriculum saw no reward in step %d: it learns from what attempt(task) returns or a program prints as "
            '"reward", and not from named rewards, lt.reward(...), judges or feedback; so far it chooses at random',
            step,
        )

    @ends_in_one_line("started again, the evaluation tries every task anew")
    def evaluate(self, tasks: Sequence[TaskT], *, stage: str) -> list[AttemptEnded]:
        """Run one attempt per task that is recorded and never trained; results are in the order of the tasks.

        Like ``train``, it waits for a daemon that is starting. Unlike it, it tries every task however often it has been
        tried before.

        Raises:
            LightningError: the daemon cannot be reached, or has no such policy.
        """
        self._daemon.wait_until_there()
        return self._run_all([_Work(task, f"{self._run}/{stage}/{task.id}", stage, None, "evaluate") for task in tasks])

    @ends_in_one_line()
    def record(self, tasks: Sequence[TaskT], *, attempts: int) -> list[AttemptEnded]:
        """Run until each task has that many attempts, a group to make a dataset from; no step ever takes them.

        Those that the daemon has of an earlier part of the run count. Results are of the attempts made now, in the
        order of the tasks.

        Raises:
            LightningError: there are no attempts to make, tasks share an id, another process holds the run's name, or
                the daemon cannot be reached, has no such policy, or attempts do not reach it.
        """
        if attempts < 1 or len({task.id for task in tasks}) < len(tasks):
            raise LightningError(
                f"attempts is {attempts}, at {len(tasks)} tasks with {len({task.id for task in tasks})} different ids; "
                "record at least 1 attempt at each, and give every task an id of its own"
            )
        check_recording()
        self._daemon.wait_until_there()
        with self._held() as run:
            recorded = partial(self._daemon.recorded, f"{run}/record/")
            there, arrivals = recorded(), Arrivals(recorded, self._reached.endpoint)
            works = [
                _Work(task, group_id, "record", None, "record")
                for task in tasks
                for group_id in [f"{run}/record/{task.id}"]
                for _ in range(attempts - there.get(group_id, 0))
            ]
            if not works:
                _log.warning("all of it is recorded already; attempts=%d is the total of each task", attempts)
            ended = self._run_all(works)
            arrivals.check(len(ended), wait_s=_FLUSH_S)
            return ended

    def _run_all(self, works: Sequence[_Work[TaskT]]) -> list[AttemptEnded]:
        def run(work: _Work[TaskT]) -> AttemptEnded:
            return self._attempted(work, self._on_event, pool)

        with WorkerPool(run, self._concurrency) as pool:
            return [future.result() for future in pool.add(works).futures]

    def _where_it_was(self, run: str, status: dict, done: int, ahead: int) -> tuple[int, int]:
        """Return how many groups of this run the steps took that need none from it any more, and the last of those."""
        started = max(0, done - ahead)
        made = _by_step(run, self._daemon.groups(f"{run}/step-"))
        if not made:
            return 0, started
        taken = _by_step(run, self._daemon.groups(f"{run}/step-", taken_until=done))
        first = min(*made, started + 1)
        # Steps of an earlier part of the run may have had fewer groups than they have now.
        whole = min(status["groups_per_step"], max(made.values()))
        started = first - 1
        while started < max(made) and (
            taken[started + 1] >= whole or not with_attempts(status, started + 1, started + 1)
        ):
            started += 1
        return sum(taken[step] for step in range(first, started + 1)), started

    def _chosen(self, run: str, tasks: Sequence[TaskT], step: int, status: dict) -> Sequence[TaskT]:
        """Return the tasks that the curriculum chooses, first those that it chose before an interruption."""
        if self._curriculum is None:
            return tasks
        prefix = f"{run}/step-{step}/"
        started = {group.removeprefix(prefix) for group in self._daemon.groups(prefix)}
        return self._curriculum.choose(tasks, status["groups_per_step"], started=started)

    def _groups(
        self, run: str, tasks: Sequence[TaskT], step: int, status: dict, taken: Container[str]
    ) -> list[tuple[str, list[_Work[TaskT]]]]:
        """Return the groups of a step, each with its id and the attempts whose end the daemon has not seen.

        A group taken before it was complete (``group_timeout_s``) stays as it is: more attempts would make a new group.
        Groups that are complete are among them even if their tasks are no longer the step's: the next step takes them.
        """
        different = len({task.id for task in tasks})
        if not different == len(tasks) == status["groups_per_step"]:
            has = f"{different} different tasks"
            if different != len(tasks):
                has = f"{len(tasks)} tasks with {different} different ids"
            raise LightningError(
                f"step {step} has {has}, but the policy's groups_per_step is {status['groups_per_step']}; "
                "make them equal"
            )
        # Group ids carry run and step: a later return of the same task is another comparison.
        works = [_Work(task, f"{run}/step-{step}/{task.id}", "train", step, "train") for task in tasks]
        wanted = {"train": status["group_size"], "baseline": int(status["needs_baseline"])}
        there = {mode: self._daemon.groups(f"{run}/step-{step}/", mode=mode) for mode, count in wanted.items() if count}
        left = there["train"].keys() - {work.group_id for work in works}
        complete = [group for group in sorted(left) if there["train"][group] >= status["group_size"]]
        return [(group, []) for group in complete] + [
            (
                work.group_id,
                [
                    work._replace(stage=mode, mode=mode)
                    for mode, ended in there.items()
                    for _ in range(0 if work.group_id in taken else wanted[mode] - ended.get(work.group_id, 0))
                ],
            )
            for work in works
        ]

    def _attempted(
        self, work: _Work[TaskT], on_attempt: Callable[[AttemptEnded], None], pool: WorkerPool
    ) -> AttemptEnded:
        """Run an attempt, and make it again if it fails. What fails once the run has ended, such as a program that was
        killed with it, is no failure: whoever starts the run again makes the attempt."""
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
                may_retry=lambda left=left: left > 0 or pool.ended,
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


def _by_step(run: str, groups: Iterable[str]) -> Counter[int]:
    """Return how many of a run's groups belong to each of its steps."""
    return Counter(int(group.removeprefix(f"{run}/step-").partition("/")[0]) for group in groups)

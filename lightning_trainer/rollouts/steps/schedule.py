"""The schedule of a training run: which attempts are made when.

Attempts of step ``k`` start once the daemon has done step ``k - 1 - max_staleness``. With 0 this is synchronous: all of
a step is sampled by the version that the previous step published. With more, agents continue while the trainer trains,
and the group that is complete first is trained first: a slow attempt does not hold up the others. This is the admission
rule of AReaL (Fu et al. 2025, arXiv 2505.24298, equation 3), applied to groups. A step that the daemon takes from a
file (``[[policy.stage]] data``) has no attempts.

An interrupted run resumes where it was: the daemon says how many steps are done and which attempts it has, by the run's
name, with which every group id begins. Other runs of the same policy may be running at the same time: a step takes the
groups that are complete first, and each run keeps as many in flight as a step needs, so none waits for another. For
each group that no step will take (``lost_groups.py``), the run begins another.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Generic, NamedTuple

from lightning_trainer.errors import LightningError
from lightning_trainer.rollouts.attempt import NamedT
from lightning_trainer.rollouts.curriculum import Curriculum
from lightning_trainer.rollouts.daemon_client import DaemonClient
from lightning_trainer.rollouts.steps.lost_groups import LostGroups
from lightning_trainer.rollouts.team import TeamClient


class Work(NamedTuple, Generic[NamedT]):
    """An attempt to make."""

    task: NamedT
    group_id: str
    stage: str
    """``train``, ``baseline``, ``record``, or the name of an evaluation."""
    step: int | None
    mode: str


class Schedule(Generic[NamedT]):
    """The groups of one run: which are begun, and which are due.

    Args:
        daemon: says which groups of the run it has, and how many it wants.
        run: the run's name, with which the ids of its groups begin.
        status: the policy's status when the run begins.
        tasks_of_step: the tasks of each step, as many as a step has groups; more with a curriculum.
        steps: how many steps the policy should do in all.
    """

    def __init__(
        self,
        daemon: DaemonClient | TeamClient,
        run: str,
        status: dict[str, Any],
        tasks_of_step: Callable[[int], Sequence[NamedT]],
        steps: int,
        curriculum: Curriculum[Any] | None = None,
    ) -> None:
        self.done: int = status["steps_done"]
        """How many steps the policy has done."""
        self._daemon = daemon
        self._prefix = f"{run}/step-"
        self._status = status
        self._tasks_of_step = tasks_of_step
        self._steps = steps
        self._curriculum = curriculum
        self._ahead: int = status["max_staleness"] or 0
        self._per_step: int = status["groups_per_step"]
        self._before, self._started = self._where_it_was()
        self._begun = self._before
        self._lost = LostGroups(daemon, run, groups_per_step=self._per_step)
        self._waiting: list[tuple[str, list[Work[NamedT]]]] = []
        """Groups of the newest step that are not begun yet."""
        self._in_flight: set[str] = set()

    def due(self) -> Iterator[list[Work[NamedT]]]:
        """Yield the attempts to begin now, in batches whose spans are delivered together: the attempts of a group or,
        if one version samples all of a step, those of the step.

        Raises:
            LightningError: the tasks do not make the step that the daemon waits for.
            TrainingError: so many groups were lost that the step will hardly come.
        """
        # Groups that other runs have in flight do not count: they may take any amount of time.
        taken = self._daemon.groups(self._prefix, taken_until=self.done)
        self._in_flight -= taken.keys()
        replaced = self._lost.look(self._in_flight, taken, self.done + 1)
        self._in_flight -= replaced
        most = self._most(replaced=len(replaced))
        while self._begun < most:
            if not self._waiting:
                self._started += 1
                if not with_attempts(self._status, self._started, self._started):
                    continue
                self._waiting = self._groups(self._started, taken)
            count = most - self._begun
            now, self._waiting = self._waiting[:count], self._waiting[count:]
            self._begun += len(now)
            self._in_flight |= {group_id for group_id, _ in now} - taken.keys()
            groups = [works for _, works in now]
            yield from groups if self._ahead else [list(chain.from_iterable(groups))]

    def heard(self, status: dict[str, Any]) -> bool:
        """Take note of the policy's newest status; return whether it has done another step, now counted in ``done``."""
        self._status = status
        if status["steps_done"] <= self.done:
            return False
        self.done += 1
        return True

    def _most(self, *, replaced: int) -> int:
        """Return how many groups of the run may have been begun by now."""
        status, done = self._status, self.done
        wanted = self._daemon.used_up(self._prefix, taken_until=done) - replaced
        wanted += status["groups_wanted"] * with_attempts(status, done + 1, done + 1)
        wanted += self._per_step * with_attempts(status, done + 2, min(done + 1 + self._ahead, self._steps))
        # Whole steps, plus exactly as many groups as were lost: groups that no step waits for would become stale.
        return self._before - (self._before - wanted) // self._per_step * self._per_step + replaced

    def _where_it_was(self) -> tuple[int, int]:
        """Return how many groups were taken from those of the run's own steps that need no more groups, and the last of
        these steps."""
        started = max(0, self.done - self._ahead)
        made = self._by_step(self._daemon.groups(self._prefix))
        if not made:
            return 0, started
        taken = self._by_step(self._daemon.groups(self._prefix, taken_until=self.done))
        first = min(*made, started + 1)
        started, whole = first - 1, 1
        while started < max(made):
            # Steps of an earlier part of the run may have had fewer groups than they have now.
            whole = min(self._per_step, max(whole, made[started + 1]))
            if taken[started + 1] < whole and with_attempts(self._status, started + 1, started + 1):
                break
            started += 1
        return sum(taken[step] for step in range(first, started + 1)), started

    def _by_step(self, groups: Iterable[str]) -> Counter[int]:
        """Return how many of the run's groups belong to each of its steps."""
        return Counter(int(group.removeprefix(self._prefix).partition("/")[0]) for group in groups)

    def _chosen(self, step: int) -> Sequence[NamedT]:
        """Return a step's tasks; with a curriculum, those that it chose before an interruption come first."""
        tasks = [*self._tasks_of_step(step)]
        if self._curriculum is None:
            return tasks
        prefix = f"{self._prefix}{step}/"
        started = {group.removeprefix(prefix) for group in self._daemon.groups(prefix)}
        return self._curriculum.choose(tasks, self._status["groups_per_step"], started=started)

    def _groups(self, step: int, taken: Container[str]) -> list[tuple[str, list[Work[NamedT]]]]:
        """Return the groups of a step, each with its id and the attempts whose end the daemon has not seen.

        A group taken before it was complete (``group_timeout_s``) stays as it is: more attempts would make a new group.
        Groups that are complete are among them even if their tasks are no longer the step's: the next step takes them.
        """
        tasks, status = self._chosen(step), self._status
        different = len({task.id for task in tasks})
        if not different == len(tasks) == status["groups_per_step"]:
            has = f"{different} different tasks"
            if different != len(tasks):
                has = f"{len(tasks)} tasks with {different} different ids"
            raise LightningError(
                f"step {step} has {has}, but the policy's groups_per_step is {status['groups_per_step']}; "
                "make them equal"
            )
        # Group ids contain the run and the step: if a task comes again later, that is another comparison.
        prefix = f"{self._prefix}{step}/"
        works = [Work(task, f"{prefix}{task.id}", "train", step, "train") for task in tasks]
        wanted = {"train": status["group_size"], "baseline": int(status["needs_baseline"])}
        there = {mode: self._daemon.groups(prefix, mode=mode) for mode, count in wanted.items() if count}
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


def with_attempts(status: dict, first: int, last: int) -> int:
    """Return how many of the steps need attempts: those of a stage that trains on a file do not."""
    shown = status.get("shown_steps", ())
    return sum(
        not any(begin <= step and (end is None or step <= end) for begin, end in shown)
        for step in range(first, last + 1)
    )

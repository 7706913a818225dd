"""What a run begins, by what the daemon says of it; that real daemons and runs agree is shown in tests/loop."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, cast

from lightning_trainer.rollouts.daemon_client import DaemonClient
from lightning_trainer.rollouts.steps.schedule import Schedule


@dataclass(frozen=True)
class _Task:
    id: str


class _Daemon:
    """Knows the ended attempts of groups, and in which step each was taken."""

    def __init__(self, ended: dict[str, int], taken: dict[str, int]) -> None:
        self._ended, self._taken = ended, taken

    def groups(self, prefix: str, *, mode: str = "train", taken_until: int | None = None) -> dict[str, int]:
        found = {group: count for group, count in self._ended.items() if group.startswith(prefix)}
        if taken_until is not None:
            found = {group: n for group, n in found.items() if self._taken.get(group, taken_until + 1) <= taken_until}
        return found if mode == "train" else {}

    def lost(self, prefix: str) -> set[str]:
        return set()

    def used_up(self, prefix: str, *, taken_until: int) -> int:
        return len(self.groups(prefix, taken_until=taken_until))


def _status(**changes: Any) -> dict[str, Any]:
    plain = {"steps_done": 0, "groups_per_step": 2, "groups_wanted": 2, "group_size": 3, "max_staleness": 0}
    return {**plain, "needs_baseline": False, "shown_steps": (), **changes}


def _begun(ended: dict[str, int], taken: dict[str, int], status: dict[str, Any], steps: int = 10) -> Counter[str]:
    def tasks(step: int) -> list[_Task]:
        return [_Task(f"t{step}.{number}") for number in range(status["groups_per_step"])]

    daemon = cast(DaemonClient, _Daemon(ended, taken))
    schedule = Schedule(daemon, "run", status, tasks, steps)
    return Counter(work.group_id for batch in schedule.due() for work in batch)


def _of_steps(groups: dict[int, int], attempts: int = 3) -> dict[str, int]:
    return {f"run/step-{step}/t{step}.{n}": attempts for step, count in groups.items() for n in range(count)}


def _steps(begun: Counter[str]) -> set[str]:
    return {group.split("/")[1] for group in begun}


def test_a_new_run_begins_the_first_step():
    assert _begun({}, {}, _status()) == {"run/step-1/t1.0": 3, "run/step-1/t1.1": 3}


def test_a_run_that_may_be_ahead_begins_so_many_steps_more():
    assert _steps(_begun({}, {}, _status(max_staleness=1))) == {"step-1", "step-2"}


def test_a_run_that_was_interrupted_makes_what_is_missing():
    ended = _of_steps({1: 2, 2: 2})
    ended["run/step-2/t2.1"] = 1
    taken = dict.fromkeys(_of_steps({1: 2}), 1)
    assert _begun(ended, taken, _status(steps_done=1)) == {"run/step-2/t2.1": 2}


def test_steps_of_fewer_groups_are_not_made_again_once_they_have_more():
    """Two steps of 2 groups, then one of 4, and the run starts again: step 4 is due, and nothing of steps 1 and 2."""
    ended = _of_steps({1: 2, 2: 2, 3: 4})
    taken = {group: int(group.split("-")[1][0]) for group in ended}
    assert _steps(_begun(ended, taken, _status(steps_done=3, groups_per_step=4, groups_wanted=4))) == {"step-4"}


def test_steps_of_more_groups_are_not_made_again_once_they_have_fewer():
    ended = _of_steps({1: 4, 2: 4})
    taken = {group: int(group.split("-")[1][0]) for group in ended}
    assert _steps(_begun(ended, taken, _status(steps_done=2))) == {"step-3"}


def test_a_step_that_trains_on_a_file_has_no_attempts():
    assert _steps(_begun({}, {}, _status(shown_steps=((1, 2),), steps_done=2))) == {"step-3"}

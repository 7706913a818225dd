"""A team of policies: its step is done when every one of them that is still trained has done it."""

from typing import Any, cast

import pytest

from lightning_trainer.errors import LightningError, TrainingError
from lightning_trainer.rollouts.daemon_client import DaemonClient
from lightning_trainer.rollouts.team import TeamClient


class Member:
    """One policy's side of a daemon, which says what it was asked to wait for."""

    def __init__(self, steps_done: int = 0, phase: str = "collecting", **settings: Any) -> None:
        self.status = {
            "steps_done": steps_done,
            "phase": phase,
            "group_size": 4,
            "groups_per_step": 2,
            "max_staleness": None,
            "groups_wanted": 2,
            "dynamic_sampling": False,
            "needs_baseline": False,
            "live_version": steps_done,
            "problems": [],
            "steps": [{"step": step, "state": "trained"} for step in range(1, steps_done + 1)],
            "shown_steps": [],
            **settings,
        }
        self.waited: list[int] = []
        self.asked: list[int] = []
        """Up to which of its steps, where it was asked what they have taken."""
        self.taken: dict[str, int] = {}
        self.made: dict[str, int] = {}
        self.gone: set[str] = set()

    def policy(self) -> dict[str, Any]:
        return self.status

    def wait_for_step(self, steps_done: int, *, groups_wanted: int) -> dict[str, Any]:
        self.waited.append(steps_done)
        if self.status["phase"] != "collecting":
            raise TrainingError(f"training is {self.status['phase']}")
        if self.status["groups_wanted"] <= groups_wanted:
            self.status["steps_done"] = steps_done
        return self.status

    def lost(self, prefix: str) -> set[str]:
        return self.gone

    def used_up(self, prefix: str, *, taken_until: int) -> int:
        self.asked.append(taken_until)
        return len(self.taken.keys() | self.gone)

    def groups(self, prefix: str, *, mode: str = "train", taken_until: int | None = None) -> dict[str, int]:
        if taken_until is None:
            return self.made
        self.asked.append(taken_until)
        return self.taken


def team(*members: Member) -> TeamClient:
    return TeamClient(cast(list[DaemonClient], list(members)))


def test_the_slowest_counts_and_each_is_waited_for():
    fast, slow = Member(3), Member(2, needs_baseline=True)
    fast.taken = slow.made = {"a": 4, "b": 4}
    asked = team(fast, slow)
    assert (asked.policy()["steps_done"], asked.policy()["needs_baseline"]) == (2, True)
    assert asked.wait_for_step(4, groups_wanted=2)["steps_done"] == 4
    assert (fast.waited, slow.waited) == ([4], [4])


def test_one_that_was_trained_before_is_waited_for_at_its_own_steps():
    fast, slow = Member(20, shown_steps=[[1, 3], [25, None]]), Member(0)
    asked = team(fast, slow)
    status = asked.policy()
    assert (status["steps_done"], status["steps"][-1]["step"]) == (0, 0)
    assert status["shown_steps"] == [(-19, -17), (5, None)]
    fast.asked.clear()
    slow.asked.clear()
    asked.groups("run/", taken_until=0)
    asked.used_up("run/", taken_until=1)
    assert (fast.asked, slow.asked) == ([20, 21], [0, 1])
    assert asked.wait_for_step(1, groups_wanted=2)["steps_done"] == 1
    assert (fast.waited, slow.waited) == ([21], [1])


def test_a_step_that_one_has_done_and_the_other_not_when_a_run_was_interrupted_is_not_done_before_it():
    """20 steps before, two of the team, and a third of one of the two, whose groups wait for the other."""
    third, done = {"c": 4, "d": 4}, {"a": 4, "b": 4, "e": 4, "f": 4, "dropped": 4}
    for steps in ((23, 2), (22, 3)):
        members = before, after = Member(steps[0]), Member(steps[1])
        first, last = members if steps[0] == 23 else members[::-1]
        first.taken = first.made = last.made = done | third
        last.taken, last.gone = {group: 4 for group in done if group != "dropped"}, {"dropped"}
        asked = team(before, after)
        assert asked.policy()["steps_done"] == 2
        asked.wait_for_step(3, groups_wanted=2)
        assert (before.waited, after.waited) == ([23], [3])


def test_a_group_is_known_of_whoever_took_part_and_taken_when_the_last_one_has_taken_it():
    planner, worker, frozen = Member(), Member(), Member(0, "serving")
    planner.made, planner.taken = {"a": 4, "b": 4}, {"a": 4, "b": 4}
    worker.made, worker.taken = {"b": 3, "c": 1}, {"b": 4}
    asked = team(planner, worker, frozen)
    assert asked.policy()["steps_done"] == 0
    assert asked.groups("") == {"a": 4, "b": 4, "c": 1}
    assert asked.groups("", taken_until=1) == {"b": 4}
    assert asked.used_up("", taken_until=1) == 2, "who has taken the most needs as many again"
    worker.gone, frozen.gone = {"c", "d"}, {"e"}
    assert asked.lost("") == {"c", "d"}
    assert asked.used_up("", taken_until=1) == 3


@pytest.mark.parametrize("phase", ["serving", "finished"])
def test_one_that_is_trained_no_more_holds_up_nobody_and_may_be_set_as_it_likes(phase):
    trained, still = Member(3), Member(1, phase, group_size=7)
    asked = team(still, trained)
    assert (asked.policy()["steps_done"], asked.policy()["group_size"]) == (3, 4)
    asked.wait_for_step(4, groups_wanted=2)
    assert (trained.waited, still.waited) == ([4], [])


def test_a_step_that_will_not_come_is_said():
    with pytest.raises(TrainingError, match="paused"):
        team(Member(), Member(0, "paused")).wait_for_step(1, groups_wanted=2)
    with pytest.raises(TrainingError, match="serving"):
        team(Member(0, "serving"), Member(0, "finished")).wait_for_step(1, groups_wanted=2)


def test_what_is_wrong_with_any_of_them_is_said():
    asked = team(Member(problems=["of the planner"]), Member(problems=["of the worker"]))
    assert asked.policy()["problems"] == ["of the planner", "of the worker"]


def test_policies_that_take_other_groups_are_refused():
    with pytest.raises(LightningError, match="have groups_per_step = 2, 3; make them equal"):
        team(Member(), Member(groups_per_step=3)).policy()


def test_it_returns_when_one_wants_more_groups():
    hungry = Member(0, groups_wanted=2)
    asked = team(hungry, Member(0))
    assert asked.wait_for_step(1, groups_wanted=0)["groups_wanted"] == 2
    assert asked.policy()["steps_done"] == 0


def test_dynamic_sampling_of_one_is_refused():
    with pytest.raises(LightningError, match=r"set algorithm\.dynamic_sampling = false"):
        team(Member(), Member(dynamic_sampling=True)).policy()

"""A step starts with whole groups, and a lost attempt holds nothing up for ever."""

from dataclasses import replace

import pytest

from lightning_trainer.samples.credit.group_collector import collect
from lightning_trainer.types import Attempt, AttemptState, RolloutMode

SECOND = 1_000_000_000


def attempt(group: str, number: int, ended_s: float, mode: RolloutMode = RolloutMode.TRAIN) -> Attempt:
    return Attempt(
        f"{group}-{number}",
        f"r-{group}-{number}",
        group,
        group,
        mode=mode,
        state=AttemptState.SUCCEEDED,
        ended_ns=int(ended_s * SECOND),
    )


def test_a_group_is_ready_when_its_last_attempt_has_ended():
    attempts = [attempt("a", n, n) for n in range(4)] + [attempt("b", n, n) for n in range(3)]

    collection = collect(attempts, group_size=4, group_timeout_s=100, now_ns=5 * SECOND)

    assert [group for group, _ in collection.ready] == ["a"]
    assert collection.waiting == {"b": 3}
    assert collection.next_step(1) == tuple(attempts[:4])
    assert collection.next_step(2) is None


def test_groups_are_taken_in_the_order_in_which_they_became_complete_whatever_the_order_of_arrival():
    late = [attempt("a", n, 10 + n) for n in range(2)]
    early = [attempt("z", n, n) for n in range(2)]

    for attempts in (late + early, early + late, [late[1], early[1], late[0], early[0]]):
        collection = collect(attempts, group_size=2, group_timeout_s=100, now_ns=20 * SECOND)
        assert [group for group, _ in collection.ready] == ["z", "a"]


def test_a_group_that_hears_nothing_more_goes_on_with_what_it_has():
    attempts = [attempt("a", n, n) for n in range(3)]

    assert collect(attempts, group_size=4, group_timeout_s=10, now_ns=11 * SECOND).ready == ()
    assert [len(m) for _, m in collect(attempts, group_size=4, group_timeout_s=10, now_ns=13 * SECOND).ready] == [3]


def test_a_single_attempt_that_nobody_gave_a_group_takes_no_place_in_a_step():
    """Before, questions that were asked once filled the steps of live traffic, which trained nothing."""
    alone, pair = [attempt("a", 0, 1)], [attempt("b", n, n) for n in range(2)]
    for ungrouped, ready in (({"a-0", "b-0", "b-1"}, ["b"]), (set(), ["a", "b"])):
        found = collect(
            alone + pair, group_size=4, group_timeout_s=10, now_ns=99 * SECOND, group_by="task", ungrouped=ungrouped
        )
        assert sorted(group for group, _ in found.ready) == ready


def test_where_a_baseline_is_needed_a_group_waits_for_it_and_it_goes_with_the_group():
    trained = [attempt("a", n, n) for n in range(2)]
    baseline = attempt("a", 9, 5, RolloutMode.BASELINE)
    other = attempt("b", 0, 6)

    def collected(attempts, now_s=7.0):
        return collect(attempts, group_size=2, group_timeout_s=100, now_ns=int(now_s * SECOND), needs_baseline=True)

    assert collected(trained).ready == ()
    assert collected(trained).waiting == {"a": 2}
    assert collected([trained[0], baseline]).ready == (), "a baseline does not stand for an attempt"
    assert collected([*trained, baseline, other]).next_step(1) == (*trained, baseline)
    assert collected([*trained, baseline, other]).waiting == {"b": 1}


def test_a_group_whose_baseline_was_lost_goes_on_without_it():
    attempts = [attempt("a", n, n) for n in range(2)]

    def ready(now_s):
        found = collect(attempts, group_size=2, group_timeout_s=10, now_ns=int(now_s * SECOND), needs_baseline=True)
        return [members for _, members in found.ready]

    assert ready(10) == []
    assert ready(12) == [tuple(attempts)]


def test_a_baseline_that_came_after_its_group_makes_no_group():
    late = attempt("a", 9, 5, RolloutMode.BASELINE)
    collection = collect([late], group_size=2, group_timeout_s=1, now_ns=99 * SECOND, needs_baseline=True)
    assert (collection.ready, collection.waiting) == ((), {})


def test_of_a_task_that_went_on_being_asked_a_step_takes_one_group_and_the_rest_waits():
    attempts = [attempt("a", n, n) for n in range(10)]

    def step_of(attempts):
        collection = collect(attempts, group_size=4, group_timeout_s=100, now_ns=20 * SECOND, group_by="task")
        return collection.next_step(1)

    assert step_of(attempts) == tuple(attempts[:4])
    assert step_of(attempts[4:]) == tuple(attempts[4:]), "two of them alone would be too few for a group"


def test_a_group_that_was_named_is_taken_as_a_whole():
    """Whoever names a group (a runner, ``group_id=``) says what belongs together, however many there are."""
    attempts = [replace(attempt("a", n, n), task_id="t") for n in range(10)]

    def size(group_by):
        collection = collect(attempts, group_size=4, group_timeout_s=100, now_ns=20 * SECOND, group_by=group_by)
        return len(collection.next_step(1) or ())

    assert (size("key"), size("prompt")) == (10, 4)


@pytest.mark.parametrize(("baselines", "taken"), [(1, 9), (2, 5)])
def test_attempts_are_left_for_a_later_step_only_where_a_baseline_is_left_with_them(baselines, taken):
    trained = [attempt("a", n, n) for n in range(8)]
    greedy = [attempt("a", 10 + n, 10 + n, RolloutMode.BASELINE) for n in range(baselines)]

    collection = collect(
        [*trained, *greedy], group_size=4, group_timeout_s=100, now_ns=20 * SECOND, needs_baseline=True
    )

    assert len(collection.next_step(1) or ()) == taken

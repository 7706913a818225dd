"""A step starts with whole groups, and a lost attempt holds nothing up for ever."""

from lightning_trainer.daemon.collecting import collect
from lightning_trainer.types import Attempt, AttemptState

SECOND = 1_000_000_000


def attempt(group: str, number: int, ended_s: float) -> Attempt:
    return Attempt(
        f"{group}-{number}",
        f"r-{group}-{number}",
        group,
        group,
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

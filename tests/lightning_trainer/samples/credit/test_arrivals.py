"""A group waits from when something last came, not from when it ended: late messages must not tear it apart."""

from lightning_trainer.samples.credit.group_collector import Arrivals, collect
from lightning_trainer.types import Attempt, AttemptState

SECOND = 1_000_000_000


def attempt(number: int, ended_s: float, group: str = "g") -> Attempt:
    return Attempt(
        f"{group}-{number}", f"r{number}", group, group, state=AttemptState.SUCCEEDED, ended_ns=int(ended_s * SECOND)
    )


def ready(arrivals: Arrivals, attempts: list[Attempt], now_s: float) -> list[int]:
    """Sizes of the groups of two that a step may take; one waits ten seconds."""
    now_ns = int(now_s * SECOND)
    heard_ns = arrivals.last_heard(attempts, now_ns)
    found = collect(attempts, group_size=2, group_timeout_s=10, now_ns=now_ns, heard_ns=heard_ns)
    return [len(members) for _, members in found.ready]


def test_after_an_outage_the_first_attempt_of_a_group_waits_for_the_others():
    arrivals = Arrivals(1000 * SECOND)
    assert ready(arrivals, [attempt(1, 5)], 1001) == []
    assert ready(arrivals, [attempt(1, 5), attempt(2, 6)], 1002) == [2]


def test_one_that_comes_late_to_a_daemon_that_looks_on_is_not_late_for_its_group():
    arrivals = Arrivals(0)
    assert ready(arrivals, [], 1000) == []
    assert ready(arrivals, [attempt(1, 5)], 1001) == []
    assert ready(arrivals, [attempt(1, 5)], 1009.9) == []
    assert ready(arrivals, [attempt(1, 5)], 1010.1) == [1], "what is lost holds nothing up for ever"


def test_each_arrival_begins_the_waiting_anew():
    arrivals = Arrivals(0)
    first, others = attempt(1, 1, "a"), [attempt(1, 1, "b"), attempt(2, 2, "b")]
    assert ready(arrivals, [first], 2) == []
    assert ready(arrivals, [first, *others], 9) == [2]
    assert ready(arrivals, [first], 12) == [1]


def test_what_was_lost_while_a_long_step_was_trained_is_not_waited_for_after_it():
    arrivals = Arrivals(0)
    assert ready(arrivals, [], 1) == []
    assert ready(arrivals, [attempt(1, 100)], 3600) == [1]


def test_a_clock_that_runs_ahead_does_not_lengthen_the_waiting():
    arrivals = Arrivals(0)
    assert ready(arrivals, [attempt(1, 9999)], 1) == []
    assert ready(arrivals, [attempt(1, 9999)], 11.1) == [1]

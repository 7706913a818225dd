"""An attempt is not trained on before all of its spans are there, and none waits for ever."""

from functools import partial

from lightning_trainer.samples.credit.group_collector import Completeness, collect
from lightning_trainer.types import Attempt, AttemptState

A, B = (Attempt(name, f"r-{name}", "t", "g", state=AttemptState.SUCCEEDED, ended_ns=1) for name in "ab")


def test_an_attempt_is_held_back_until_nothing_is_missing():
    completeness = Completeness(30)
    first = completeness.sort([A, B], {"a": 2}, 0.0)
    assert (first.ready, first.held, first.given_up) == ((B,), {"a": 2}, ())
    assert completeness.sort([A, B], {}, 1.0).ready == (A, B)


def test_the_time_runs_anew_whenever_something_has_come():
    completeness = Completeness(30)
    for now_s, missing in ((0.0, 3), (29.0, 2), (58.0, 1), (87.0, 1)):
        assert completeness.sort([A], {"a": missing}, now_s).held == {"a": missing}
    assert completeness.sort([A], {"a": 1}, 88.5).ready == (A,)


def test_an_attempt_that_goes_on_without_spans_is_named_once_and_counted():
    completeness = Completeness(30)
    completeness.sort([A], {"a": 2}, 0.0)
    sorted_ = completeness.sort([A, B], {"a": 2}, 31.0)
    assert sorted_.ready == (A, B)
    (sentence,) = sorted_.given_up
    assert "attempt a: 2 of its spans did not arrive" in sentence
    assert "30 s" in sentence
    assert completeness.sort([A, B], {"a": 2}, 32.0) == type(sorted_)((A, B), {}, ())
    assert (completeness.gave_up_on([A, B]), completeness.gave_up_on([B])) == (1.0, 0.0)


def test_attempts_that_were_consumed_are_forgotten():
    completeness = Completeness(30)
    completeness.sort([A], {"a": 1}, 0.0)
    completeness.sort([], {}, 31.0)
    assert completeness.sort([A], {"a": 1}, 40.0).held == {"a": 1}


def test_a_group_whose_attempt_is_held_back_does_not_time_out_without_it():
    late = partial(collect, group_size=2, group_timeout_s=5, now_ns=10**12)
    assert late([B], expecting={"g"}).ready == ()
    assert len(late([B]).ready) == 1
    assert len(late([A, B], expecting={"g"}).ready) == 1

"""Several named rewards: the weighted sum, and that a missing part is never zero."""

from itertools import permutations

import pytest

from lightning_trainer.samples.rewards.reward_table import read_rewards
from lightning_trainer.types import RolloutMode

WEIGHTS = {"score": 1.0, "format": 0.25}


@pytest.fixture
def read(make_call, make_attempt):
    def read(*evaluations, attempts=None, calls=None):
        attempts = attempts or [make_attempt("a1"), make_attempt("a2")]
        calls = calls or [make_call("s1"), make_call("s2", attempt_id="a2", start=10)]
        return read_rewards(evaluations, calls, {a.attempt_id: a for a in attempts}, WEIGHTS)

    return read


@pytest.fixture
def given(make_evaluation):
    def given(name, value, attempt="a1", **changes):
        return make_evaluation(value, attempt, name=name, **changes)

    return given


def test_the_weighted_sum_by_hand(read, given):
    """1 * 0.5 + 0.25 * 2 = 1 and 1 * 0 + 0.25 * -2 = -0.5, in any order of arrival."""
    evaluations = [
        given("score", 0.5),
        given("format", 2.0),
        given("score", 0.0, "a2"),
        given("format", -2.0, "a2"),
    ]
    for order in permutations(evaluations):
        table = read(*order, order[0])
        assert (table.of_attempts, table.problems, table.incomplete) == ({"a1": 1.0, "a2": -0.5}, (), {})


def test_a_single_name_may_have_a_weight(make_evaluation, make_attempt, make_call):
    table = read_rewards([make_evaluation(3.0)], [make_call("s")], {"a1": make_attempt()}, {"reward": 0.5})
    assert table.of_attempts == {"a1": 1.5}


def test_a_part_that_another_attempt_has_is_missing_and_not_zero(read, given):
    table = read(given("score", 1.0), given("format", 1.0), given("score", 1.0, "a2"))
    assert table.of_attempts == {"a1": 1.25}
    assert table.incomplete == {}
    assert table.problems == (
        "reward 'format' is missing where others that it is compared with have it: 1 (such as attempt a2); their sum "
        "of score, format counts as missing, so give 0 where you mean 0",
    )


def test_a_part_that_nobody_has_leaves_the_group_out(read, given):
    table = read(given("score", 1.0), given("score", 0.0, "a2"))
    assert table.of_attempts == {}
    assert list(table.incomplete) == ["g"]
    assert "group g: nobody in it was given format, so no weighted reward can be summed up" in table.incomplete["g"]


def test_a_group_where_nobody_has_all_parts_is_left_out(read, given):
    table = read(given("score", 1.0), given("format", 1.0, "a2"))
    assert table.of_attempts == {}
    assert "group g: no attempt has all of format, score" in table.incomplete["g"]


def test_each_part_may_have_a_scope_of_its_own(read, given):
    """``score`` of attempts and ``format`` of calls: neither is missing where it is never given."""
    table = read(
        given("score", 1.0),
        given("score", 0.0, "a2"),
        given("format", 2.0, span_id="chat-s1"),
        given("format", 4.0, span_id="chat-s2"),
    )
    assert (table.of_attempts, table.of_calls) == ({"a1": 1.0, "a2": 0.0}, {"s1/0": 0.5, "s2/0": 1.0})
    assert table.incomplete == {}


def test_what_one_agent_is_given_is_expected_of_no_other(read, given, make_call):
    calls = [make_call("s1"), make_call("s2", attempt_id="a2"), make_call("s3", agent="critic")]
    table = read(
        given("score", 1.0, agent="solver"),
        given("score", 0.0, "a2", agent="solver"),
        given("format", 2.0, agent="critic"),
        calls=calls,
    )
    assert table.of_agents == {("a1", "solver"): 1.0, ("a2", "solver"): 0.0, ("a1", "critic"): 0.5}


def test_groups_are_told_apart(read, given, make_attempt):
    attempts = [make_attempt("a1"), make_attempt("a2", group_id="h")]
    table = read(given("score", 1.0), given("format", 1.0), given("score", 1.0, "a2"), attempts=attempts)
    assert table.of_attempts == {"a1": 1.25}
    assert list(table.incomplete) == ["h"]


def test_an_evaluation_rollout_says_nothing_of_what_is_expected(read, given, make_attempt):
    attempts = [make_attempt("a1"), make_attempt("a2", mode=RolloutMode.EVALUATE)]
    table = read(given("score", 1.0), given("format", 1.0), given("score", 1.0, "a2"), attempts=attempts)
    assert table.of_attempts == {"a1": 1.25}
    assert table.incomplete == {}


def test_attempts_that_are_compared_with_nothing_each_need_all_parts_themselves(read, given, make_attempt):
    attempts = [make_attempt(name, mode=RolloutMode.EVALUATE) for name in ("a1", "a2")]
    table = read(given("score", 1.0), given("format", 1.0), attempts=attempts)
    assert table.of_attempts == {"a1": 1.25}
    assert read(given("score", 1.0), given("format", 1.0, "a2"), attempts=attempts).of_attempts == {}


def test_nothing_is_said_of_evaluation_rollouts_that_lack_a_part(read, given, make_attempt):
    attempts = [make_attempt(name, mode=RolloutMode.EVALUATE, group_id=name) for name in ("a1", "a2")]
    table = read(given("score", 1.0), given("format", 1.0), given("score", 1.0, "a2"), attempts=attempts)
    assert table.problems == ()

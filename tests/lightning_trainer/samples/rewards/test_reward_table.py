import math
from itertools import permutations

import pytest

from lightning_trainer.samples.rewards.reward_table import read_rewards


@pytest.fixture
def read(make_call, make_attempt):
    def read(*evaluations, calls=None, attempts=None, repeated=()):
        calls = [make_call("s1"), make_call("s2", start=10)] if calls is None else calls
        attempts = attempts or [make_attempt("a1"), make_attempt("a2")]
        return read_rewards(evaluations, calls, {a.attempt_id: a for a in attempts}, "reward", repeated)

    return read


def test_an_evaluation_of_the_attempt_or_of_a_span_that_is_no_call_is_its_reward(read, make_evaluation):
    assert read(make_evaluation(1.0)).of_attempts == {"a1": 1.0}
    assert read(make_evaluation(1.0, span_id="the agent's span")).of_attempts == {"a1": 1.0}


@pytest.mark.parametrize("span_id", ["s1", "s1/0", "chat-s1"])
def test_an_evaluation_of_a_call_scores_that_step_only(read, make_evaluation, span_id):
    table = read(make_evaluation(0.5, span_id=span_id))
    assert (table.of_calls, table.of_attempts) == ({"s1/0": 0.5}, {})


def test_an_evaluation_of_a_call_needs_no_attempt(read, make_evaluation):
    assert read(make_evaluation(0.5, None, span_id="chat-s2")).of_calls == {"s2/0": 0.5}


def test_a_span_above_several_calls_is_not_a_chat_span(read, make_call, make_evaluation):
    calls = [make_call(span, parent_span_id="agent") for span in ("s1", "s2")]
    assert read(make_evaluation(1.0, span_id="agent"), calls=calls).of_attempts == {"a1": 1.0}


def test_the_span_above_a_clients_own_record_is_not_a_chat_span(read, make_call, make_evaluation):
    calls = [make_call("chat", parent_span_id="agent", policy_version=None, policy=None)]
    assert read(make_evaluation(1.0, span_id="agent"), calls=calls).of_attempts == {"a1": 1.0}


def test_a_chat_span_with_an_interrupted_first_try_is_still_one_call(read, make_call, make_evaluation):
    calls = [make_call("s1", parent_span_id="chat", complete=False), make_call("s2", parent_span_id="chat")]
    assert read(make_evaluation(1.0, span_id="chat"), calls=calls).of_calls == {"s2/0": 1.0}


def test_naming_a_repeated_record_scores_the_call_that_is_kept(read, make_call, make_evaluation):
    kept, repeat = make_call("gateway", parent_span_id="chat"), make_call("foreign", parent_span_id="agent")
    assert read(make_evaluation(1.0, span_id="foreign"), calls=[kept], repeated=[(repeat, kept)]).of_calls == {
        "gateway/0": 1.0
    }


def test_of_several_choices_the_evaluation_must_name_one(read, make_call, make_evaluation):
    choices = [make_call("s", choice=choice) for choice in range(2)]
    table = read(make_evaluation(1.0, span_id="s"), calls=choices)
    assert (table.of_calls, table.of_attempts) == ({}, {})
    assert "name one as s/0" in table.problems[0]
    assert read(make_evaluation(1.0, span_id="s/1"), calls=choices).of_calls == {"s/1": 1.0}


def test_a_rollouts_reward_is_that_of_its_last_attempt(read, make_attempt, make_evaluation):
    attempts = [make_attempt(name, rollout_id="r", started_ns=start) for name, start in (("late", 9), ("early", 1))]
    evaluation = make_evaluation(1.0, None, rollout_id="r")
    assert read(evaluation, attempts=attempts).of_attempts == {"late": 1.0}


def test_the_last_number_by_time_counts_in_any_order_and_however_often(read, make_evaluation):
    first, last = make_evaluation(1.0, time_ns=1), make_evaluation(0.25, time_ns=2)
    failed = make_evaluation(None, time_ns=3)
    for order in permutations([first, last, last, failed]):
        assert read(*order).of_attempts == {"a1": 0.25}
    assert read(make_evaluation(0.0), make_evaluation(1.0)).of_attempts == {"a1": 1.0}


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_what_is_not_a_number_is_missing_and_not_zero(read, make_evaluation, value):
    table = read(make_evaluation(value))
    assert table.of_attempts == {}
    assert table.problems == (f"attempt a1: evaluation 'reward' gave no number ({value}) and counts as missing",)


def test_other_names_and_other_attempts_are_not_our_reward(read, make_evaluation):
    table = read(make_evaluation(1.0, name="politeness"), make_evaluation(1.0, "elsewhere"), make_evaluation(1.0, None))
    assert (table.of_attempts, table.of_calls, table.problems) == ({}, {}, ())


def test_an_evaluation_of_a_response_scores_the_call_that_gave_it(read, make_evaluation, make_call):
    table = read(make_evaluation(0.5, None, response_id="response-s2"))
    assert (table.of_calls, table.of_attempts) == ({"s2/0": 0.5}, {})
    # What names an attempt too is still about the response, also when the response is not here.
    assert read(make_evaluation(0.5, "a1", response_id="response-s1")).of_calls == {"s1/0": 0.5}
    assert read(make_evaluation(0.5, "a1", response_id="unknown")).of_attempts == {}
    choices = [make_call("s", choice=choice) for choice in range(2)]
    assert "name one as s/0" in read(make_evaluation(1.0, response_id="response-s"), calls=choices).problems[0]


def test_an_evaluation_of_an_agent_scores_its_part_of_the_attempt(read, make_attempt, make_evaluation):
    table = read(make_evaluation(0.5, agent="solver"), make_evaluation(1.0))
    assert (table.of_agents, table.of_attempts) == ({("a1", "solver"): 0.5}, {"a1": 1.0})
    attempts = [make_attempt(name, rollout_id="r", started_ns=start) for name, start in (("late", 9), ("early", 1))]
    late = make_evaluation(0.5, None, rollout_id="r", agent="solver")
    assert read(late, attempts=attempts).of_agents == {("late", "solver"): 0.5}


def test_a_judge_that_failed_and_then_gave_a_number_is_no_problem(read, make_evaluation):
    failed, given = make_evaluation(None, time_ns=50), make_evaluation(0.5, time_ns=60)
    assert len(read(failed).problems) == 1
    assert (read(failed, given).of_attempts, read(failed, given).problems) == ({"a1": 0.5}, ())

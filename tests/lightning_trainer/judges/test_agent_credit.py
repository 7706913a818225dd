"""The shares of agents, or of calls, add up to the outcome; an answer whose shares do not is not a verdict."""

import re

import pytest

from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.samples.rewards.reward_table import read_rewards


def share(name, part, reason="so"):
    return {"name": name, "reason": reason, "share": part}


def answer(*shares, **more):
    return {"reason": "as a whole", "score": 0.8, "shares": list(shares), **more}


@pytest.fixture
def team(attempt_to_judge):
    return attempt_to_judge(
        "a", ["Ask the worker.", "It is 6.", "So it is 6."], agents=["planner", "worker", "planner"]
    )


async def test_each_agent_gets_its_share_of_the_outcome(judge, script, team):
    script.answers = [answer(share("worker", 0.75, "it did the sum"), share("planner", 0.25))]
    judged, sink = await judge("agent_credit", {}, spans=team)
    reading = read_spans([*team, *sink.spans])
    attempts = {one.attempt_id: one for one in reading.attempts}
    table = read_rewards(reading.evaluations, reading.calls, attempts, "helpful")
    assert table.of_agents == pytest.approx({("a", "worker"): 0.6, ("a", "planner"): 0.2})
    assert table.of_attempts == {}
    assert judged["a"].value == pytest.approx(0.8)
    assert "it did the sum" in judged["a"].reason


async def test_each_call_gets_its_share(judge, script, team):
    script.answers = [answer(share("call-2", 0.5), share("call-1", 0.5), share("call-3", 0.0))]
    _, sink = await judge("agent_credit", {}, spans=team, per="call")
    reading = read_spans([*team, *sink.spans])
    attempts = {one.attempt_id: one for one in reading.attempts}
    table = read_rewards(reading.evaluations, reading.calls, attempts, "helpful")
    assert [table.of_calls[call.call_id] for call in reading.calls] == pytest.approx([0.4, 0.4, 0.0])
    shown, asked = re.split(r"</attempt \w+>", script.questions[0])
    assert "- call-2: worker, 'It is 6.'" in shown
    assert asked.endswith("- call-1: planner\n- call-2: worker\n- call-3: planner")
    assert "It is 6." not in asked, "outside of the marks an agent's words would be instructions"


async def test_calls_of_two_attempts_with_the_same_words_get_their_own_shares(judge, script, attempt_to_judge):
    spans = [*attempt_to_judge("a", ["It is 6."]), *attempt_to_judge("b", ["It is 6."])]
    script.answers = [answer(share("call-1", 1.0))]
    _, sink = await judge("agent_credit", {}, spans=spans, per="call")
    reading = read_spans([*spans, *sink.spans])
    attempts = {one.attempt_id: one for one in reading.attempts}
    table = read_rewards(reading.evaluations, reading.calls, attempts, "helpful")
    assert [table.of_calls[call.call_id] for call in reading.calls] == [0.8, 0.8]
    assert len(script.bodies) == 1


async def test_the_outcome_may_be_a_reward_that_is_there(judge, script, team, reward_span):
    script.answers = [answer(share("worker", 1.0), share("planner", 0.0))]
    judged, _ = await judge("agent_credit", {}, spans=[*team, reward_span(-2.0, attempt="a")], outcome="reward")
    assert judged["a"].value == pytest.approx(-2.0)
    judged, _ = await judge("agent_credit", {}, spans=team, outcome="score")
    assert judged["a"].value is None
    assert "no evaluation 'score'" in judged["a"].reason


@pytest.mark.parametrize(
    "shares",
    [
        [share("worker", 0.75), share("planner", 0.75)],
        [share("worker", 0.5), share("planner", 0.4)],
        [share("worker", 1.0)],
        [share("worker", 0.5), share("planer", 0.5)],
        [share("worker", 0.5), share("worker", 0.5), share("planner", 0.0)],
        [share("worker", 1.5), share("planner", -0.5)],
        [share("worker", "75%"), share("planner", "25%")],
        [],
    ],
)
async def test_shares_that_do_not_add_up_are_no_verdict(judge, script, team, shares):
    script.answers = [answer(*shares)]
    judged, sink = await judge("agent_credit", {}, spans=team, retries=1)
    assert judged["a"].value is None
    assert len(script.bodies) == 2
    assert all(one.value is None for one in read_spans(sink.spans).evaluations)


async def test_a_rounded_sum_is_made_exact(judge, script, team):
    script.answers = [answer(share("worker", 0.333), share("planner", 0.663))]
    judged, _ = await judge("agent_credit", {}, spans=team)
    assert judged["a"].value == pytest.approx(0.8, abs=1e-12)

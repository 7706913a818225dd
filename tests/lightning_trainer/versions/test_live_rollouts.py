"""A live rollout has a reward once it has every one of the policy's rewards, whoever gave them."""

from dataclasses import replace

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.config.policies.versions import CanaryConfig
from lightning_trainer.types import Attempt, AttemptState
from lightning_trainer.versions.held_out import verdicts
from lightning_trainer.versions.live_rollouts import LiveRollout, Usual, judge_candidate, judge_shadow, read_rollouts

ATTEMPT = Attempt("a1", "r-a1", "t", "a1", state=AttemptState.SUCCEEDED, started_ns=1, ended_ns=9)


@pytest.fixture
def rewards(make_policy, attempt_spans, reward_span):
    """``rewards({name: weight}, (name, value, about), ...)``: of a live rollout, and of an evaluation like it."""

    def rewards(weights, *given, agents=("solver",)):
        spans = []
        for number, agent in enumerate(agents):
            root, call = attempt_spans("a1", [1, 2], 1 + number)
            own = {**call.attributes, semconv.AGENT_NAME: agent, semconv.RESPONSE_ID: f"response-{number}"}
            spans += [root] if not number else []
            spans.append(replace(call, span_id=f"{number + 1:016x}", attributes=own))
        for name, value, about in given:
            span = reward_span(value, attempt="a1")
            told = {**span.events[0].attributes, semconv.EVALUATION_NAME: name, **about}
            spans.append(replace(span, events=(replace(span.events[0], attributes=told),)))
        policy = make_policy(reward=weights, agents=("solver", "critic"))
        live = read_rollouts([ATTEMPT], spans, policy)["a1"].reward
        held_out = verdicts([ATTEMPT], spans, policy).get("a1")
        assert live == (None if held_out is None else held_out.reward)
        return live

    return rewards


def test_a_part_of_a_weighted_reward_is_none_until_the_rest_has_come(rewards):
    """0.5 * 1 + 1 * 0.25 = 0.75."""
    weights = {"feedback": 0.5, "score": 1.0}
    assert rewards(weights, ("score", 0.25, {})) is None
    assert rewards(weights, ("score", 0.25, {}), ("feedback", 1.0, {})) == 0.75
    assert rewards(weights, ("score", 0.25, {}), ("feedback", float("nan"), {})) is None


def test_what_agents_were_given_adds_up_once_all_of_them_have_theirs(rewards):
    solver, critic = ({semconv.EVALUATION_AGENT: name} for name in ("solver", "critic"))
    both = ("solver", "critic")
    assert rewards("credit", ("credit", 0.5, solver), agents=both) is None
    assert rewards("credit", ("credit", 0.5, solver), ("credit", 0.25, critic), agents=both) == 0.75


def test_nothing_is_expected_of_an_agent_that_the_policy_does_not_claim_nor_counts(rewards):
    solver, critic, summarizer = ({semconv.EVALUATION_AGENT: name} for name in ("solver", "critic", "summarizer"))
    given = ("credit", 0.5, solver), ("credit", 0.25, critic)
    three = ("solver", "critic", "summarizer")
    assert rewards("credit", *given, agents=three) == 0.75
    assert rewards("credit", *given, ("credit", 4.0, summarizer), agents=three) == 0.75
    assert rewards("credit", given[0], ("credit", 4.0, summarizer), agents=three) is None
    calls = [("credit", 0.5, {semconv.RESPONSE_ID: f"response-{number}"}) for number in (0, 1)]
    assert rewards("credit", *calls, agents=three) == 1.0


def test_what_calls_were_given_adds_up_once_all_of_them_have_theirs(rewards):
    first, second = ({semconv.RESPONSE_ID: f"response-{number}"} for number in (0, 1))
    both = ("solver", "solver")
    assert rewards("credit", ("credit", 0.5, first), agents=both) is None
    assert rewards("credit", ("credit", 0.5, first), ("credit", 0.25, second), agents=both) == 0.75
    assert rewards("credit", ("credit", 1.0, {}), ("credit", 0.25, second), agents=both) == 1.0, "the attempt's own"


def test_a_call_that_its_caller_made_again_before_the_engine_answered_leaves_the_attempt_to_its_version(
    make_policy, attempt_spans, reward_span
):
    root, call = attempt_spans("a1", [1, 2], 1, version=4)
    tokens = (semconv.RESPONSE_ID, semconv.response_token_ids(0), semconv.response_logprobs(0))
    lost = {name: value for name, value in call.attributes.items() if name not in (semconv.POLICY_VERSION, *tokens)}
    gone = replace(call, span_id="f" * 16, end_ns=10**9 + 1, attributes={**lost, semconv.STREAM_COMPLETE: False})
    of_another = replace(
        call, span_id="e" * 16, attributes={**call.attributes, semconv.POLICY_VERSION: 5, semconv.RESPONSE_ID: "o"}
    )
    unknown = replace(call, span_id="d" * 16, attributes={**call.attributes, **gone.attributes})
    del unknown.attributes[semconv.POLICY_VERSION]
    spans = [root, call, reward_span(1.0, attempt="a1")]
    for more, version in ((gone, 4), (of_another, None), (unknown, None)):
        found = read_rollouts([ATTEMPT], [*spans, more], make_policy()).get("a1")
        held_out = verdicts([ATTEMPT], [*spans, more], make_policy()).get("a1")
        assert (found and found.version, held_out and held_out.version) == (version, version)
        assert found is None or found.seconds >= 1, "what the caller has waited for in vain counts"


def test_means_and_bounds_are_on_the_scale_of_the_rewards():
    """On a range from -1 to 3, 1 is in the middle."""
    config = CanaryConfig(range=(-1.0, 3.0), share=0.5)
    new, old = (LiveRollout(version, reward, False, False, False, 1, 1.0) for version, reward in ((1, 0.0), (0, 3.0)))
    for found in (
        judge_candidate([new] * 60 + [old] * 60, 1, 0, config, Usual()),
        judge_shadow([(new, old)] * 60, config, Usual()),
    ):
        said = found.evidence()
        assert (said["means"], said["range"]) == ([0.0, 3.0], [-1.0, 3.0])
        assert -1.0 <= said["candidate"][0] < 0.0 < said["candidate"][1] < said["live"][0] < 3.0 == said["live"][1]
        assert found.reason == "its canary is worse: mean 0.000 of 60 rollouts, of the live version 3.000 of 60"


@pytest.mark.parametrize(
    ("reason", "refused"), [("content_filter", True), ("CONTENT_FILTER", True), ("stop", False), (None, False)]
)
def test_a_refusal_counts_in_whatever_case_it_is_written(make_policy, attempt_spans, reason, refused: bool):
    root, call = attempt_spans("a1", [1, 2], 1)
    ended = {} if reason is None else {semconv.FINISH_REASONS: (reason,)}
    kept = {name: value for name, value in call.attributes.items() if name != semconv.FINISH_REASONS}
    spans = [root, replace(call, attributes={**kept, **ended, semconv.AGENT_NAME: "solver"})]
    assert read_rollouts([ATTEMPT], spans, make_policy(agents=("solver",)))["a1"].refused is refused

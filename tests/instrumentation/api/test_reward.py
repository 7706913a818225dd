"""A reward belongs to what it names, not to whatever is currently running."""

import httpx
import lightning_instrumentation as lt
import pytest
from lightning_instrumentation import semconv

from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.samples.rewards.reward_table import read_rewards
from lightning_trainer.types import Span, SpanEvent


@pytest.fixture
def ask(recording):
    """Make a call; return the id of its response, which is the same for the same text."""

    def ask(text):
        said = {"model": "m", "messages": [{"role": "user", "content": text}]}
        return httpx.post(f"{recording.model.base_url}/chat/completions", json=said).json()["id"]

    return ask


@pytest.fixture
def given(recording):
    """The ids of the last evaluation's span."""
    names = {semconv.ROLLOUT_ID: "rollout", semconv.ATTEMPT_ID: "attempt", semconv.RESPONSE_ID: "response"}

    def given():
        attributes = recording.spans("evaluate")[-1].attributes
        return {short: attributes[name] for name, short in names.items() if name in attributes}

    return given


def rewards(recording):
    """What the daemon reads of everything that was sent: rewards by response id."""
    spans = [
        Span(
            *(one.trace_id, one.span_id, one.parent_span_id or None, one.name, one.start_ns, one.end_ns),
            one.attributes,
            tuple(SpanEvent(name, one.end_ns, attributes) for name, attributes in one.events),
            scope=semconv.CLIENT_SCOPE,
        )
        for one in recording.spans()
    ]
    read = read_spans(spans)
    table = read_rewards(read.evaluations, read.calls, {one.attempt_id: one for one in read.attempts}, "reward")
    assert not table.problems
    return {call.response_id: table.of_calls.get(call.call_id) for call in read.calls}


def test_a_critic_in_a_rollout_of_its_own_rewards_the_response_that_it_names(recording, ask, given):
    """Before: the reward was put on the critic's attempt, where no build of the response's own ever looked."""
    with lt.rollout("solve"):
        solved = ask("6 * 7")
    with lt.rollout("criticize"):
        critic = ask("is it 42?")
        lt.reward(0.5, response_id=solved)
    assert given() == {"response": solved}
    assert rewards(recording) == {solved: 0.5, critic: None}


def test_a_response_of_the_current_attempt_keeps_the_attempt(ask, given):
    """Servers repeat their ids."""
    for value in (0.25, 0.75):
        with lt.rollout("t") as rollout:
            response_id = ask("hello")
            lt.reward(value, response_id=response_id)
        assert given() == {"rollout": rollout.rollout_id, "attempt": rollout.attempt_id, "response": response_id}


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(
    ("named", "kept"),
    [
        ({"response_id": "r", "attempt_id": "a"}, {"response": "r", "attempt": "a"}),
        ({"attempt_id": "a"}, {"attempt": "a"}),
        ({"rollout_id": "o"}, {"rollout": "o"}),
        ({"rollout_id": "o", "attempt_id": "a"}, {"rollout": "o", "attempt": "a"}),
        ({"rollout_id": "o", "response_id": "r"}, {"rollout": "o", "response": "r"}),
    ],
    ids=["-".join(one) for one in ("ra", "a", "o", "oa", "or")],
)
def test_what_is_named_is_recorded_and_nothing_else(recording, given, inside, named, kept):
    """Before: the attempt was left out beside a response, refused alone, and in a rollout given that one's id."""
    if inside:
        with lt.rollout("t"):
            lt.reward(1, **named)
    else:
        lt.reward(1, **named)
    assert given() == kept


def test_the_current_attempt_may_be_named(recording, given):
    with lt.rollout("t") as rollout:
        lt.reward(1, rollout_id=rollout.rollout_id)
        here = {"rollout": rollout.rollout_id, "attempt": rollout.attempt_id}
        assert given() == here
        lt.reward(1, attempt_id=rollout.attempt_id, response_id="r")
        assert given() == {**here, "response": "r"}

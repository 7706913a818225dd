"""An ``lt.rollout`` inside another: a runner's attempt takes it in, one of the user's own has it beside itself."""

import logging

import lightning_instrumentation as lt
import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.failures import failures
from lightning_instrumentation.rollout import RunRollout
from lightning_instrumentation.scope import current
from opentelemetry import baggage, context


def runners(mode: str = "evaluate", input: str | None = None) -> RunRollout:
    return RunRollout("theirs", rollout_id="r", attempt_id="a", group_id="g", mode=mode, input=input)


def test_inside_a_runners_attempt_it_is_that_attempt(recording):
    """Before, it was an attempt of its own with mode ``train``: a held-out evaluation became training data."""
    with runners() as outer, lt.agent("solver"), lt.rollout("mine", input="2+2?", policies="p") as rollout:
        lt.reward(0.5)
        rollout.reward(1.0, "by name")
        rollout.retried()
    assert (rollout.rollout_id, rollout.attempt_id, rollout.mode) == ("r", "a", "evaluate")
    assert (rollout.task_id, rollout.group_id, rollout.trace_id) == ("theirs", "g", outer.trace_id)
    root, inner = recording.spans("rollout")
    assert (root.name, inner.name) == ("rollout theirs", "rollout mine")
    assert root.attributes[semconv.ROLLOUT_ROOT] is True
    assert inner.attributes[semconv.ROLLOUT_INPUT] == '"2+2?"'
    assert inner.parent_span_id == recording.span("invoke_agent").span_id
    assert not inner.attributes.keys() & {semconv.ROLLOUT_ROOT, semconv.ROLLOUT_POLICIES}
    assert len(recording.spans("evaluate")) == 2
    for span in recording.spans():
        assert (span.attributes[semconv.ATTEMPT_ID], span.attributes[semconv.ROLLOUT_MODE]) == ("a", "evaluate")


def test_what_is_given_to_it_does_not_count_and_that_is_said_once(recording, monkeypatch, caplog):
    monkeypatch.setattr(failures, "_said", set())
    before = lt.stats().failed
    with caplog.at_level(logging.WARNING, logger="lightning_instrumentation"), runners():
        for number in range(2):
            with lt.rollout(f"t{number}", rollout_id="mine", attempt_id="mine", group_id="mine", mode="train") as mine:
                assert (mine.rollout_id, mine.attempt_id, mine.group_id, mine.mode) == ("r", "a", "g", "evaluate")
    (record,) = caplog.records
    assert "lt.rollout('t0') is inside attempt a of a runner" in record.getMessage()
    assert lt.stats().failed == before


def test_its_state_and_agent_are_those_around_it(recording):
    with runners(), lt.agent("solver"), lt.state("kitchen"):
        around = current()
        with lt.rollout("t"):
            within = current()
        assert current() is around
    assert (within.identity, within.agent, within.state) == (around.identity, around.agent, "kitchen")


@pytest.mark.parametrize(("given", "mode"), [(None, "evaluate"), ("record", "record")])
def test_inside_one_of_the_users_own_it_is_an_attempt_of_its_own_with_the_same_mode(recording, given, mode):
    with lt.rollout("outer", mode="evaluate") as outer, lt.rollout("inner", mode=given) as inner:
        pass
    assert (outer.mode, inner.mode) == ("evaluate", mode)
    assert outer.attempt_id != inner.attempt_id
    around, inside = recording.spans("rollout")
    assert inside.trace_id != around.trace_id
    assert inside.attributes[semconv.ROLLOUT_ROOT] is True
    assert inside.attributes[semconv.ROLLOUT_MODE] == mode


def test_a_runners_attempt_begins_wherever_it_is(recording):
    """A program under `run --task` may itself hold a runner."""
    with runners(), RunRollout("t", mode="train") as inner:
        assert inner.attempt_id != "a"
    assert [span.attributes[semconv.ROLLOUT_ROOT] for span in recording.spans("rollout")] == [True, True]


@pytest.mark.parametrize(
    ("theirs", "mode"),
    [
        ({semconv.ROLLOUT_MODE: "evaluate"}, "evaluate"),
        ({semconv.ROLLOUT_MODE: "baseline"}, "evaluate"),
        ({semconv.ROLLOUT_MODE: "record"}, "record"),
        ({semconv.ROLLOUT_MODE: "train"}, "train"),
        ({semconv.ROLLOUT_MODE: "shadow"}, "train"),
        ({}, "train"),
    ],
)
def test_a_request_from_an_attempt_that_is_never_trained_begins_none_that_is(recording, theirs, mode):
    """Before, a server with an ``lt.rollout`` of its own made training data of an evaluation that called it."""
    members = {semconv.ROLLOUT_ID: "r", semconv.ATTEMPT_ID: "a", semconv.GROUP_ID: "g", **theirs}
    arrived = context.Context()
    for name, value in members.items():
        arrived = baggage.set_baggage(name, value, arrived)
    token = context.attach(arrived)
    try:
        with lt.rollout("mine") as rollout, lt.rollout("train", mode="train") as trained:
            pass
    finally:
        context.detach(token)
    assert (rollout.mode, trained.mode) == (mode, "train")
    assert (rollout.task_id, rollout.group_id) == ("mine", "mine")
    assert rollout.attempt_id != "a"
    assert recording.span("rollout mine").attributes[semconv.ROLLOUT_MODE] == mode

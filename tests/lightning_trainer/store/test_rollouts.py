"""Rollouts by what a person knows of them."""

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.store.tables.rollouts import (
    nearest_names,
    select_lacking,
    select_named,
    select_recent,
    select_spans_without_attempt,
    without_parent,
)


@pytest.fixture
async def connection(store, connect, make_root, make_span):
    await store.append([make_root(number, name) for number, name in enumerate(("one", "two", "three"), start=1)])
    return connect(store)


def test_exact_names_win_over_beginnings_and_beginnings_over_nothing(connection):
    connection.execute("BEGIN")
    assert select_named(connection, "rollout-of-two") == ["rollout-of-two"]
    assert select_named(connection, "two") == ["rollout-of-two"]
    assert select_named(connection, "rollout-of-t") == ["rollout-of-two", "rollout-of-three"]
    assert select_named(connection, "*-of-?hree") == ["rollout-of-three"]
    assert select_named(connection, "task") == ["rollout-of-one", "rollout-of-two", "rollout-of-three"]
    assert select_named(connection, "four") == []


def test_a_name_is_never_a_pattern_of_sql(connection):
    connection.execute("BEGIN")
    assert select_named(connection, "%") == []
    assert select_named(connection, "rollout_of_two") == []


def test_the_nearest_names_are_those_that_look_alike_else_the_newest(connection):
    connection.execute("BEGIN")
    assert nearest_names(connection, "rollout-of-twoo")[0] == "rollout-of-two"
    assert nearest_names(connection, "zzz") == ["rollout-of-three", "rollout-of-two", "rollout-of-one"]


def test_the_newest_come_first(connection):
    connection.execute("BEGIN")
    (newest, *_) = select_recent(connection, 2)
    assert (newest.rollout_id, newest.task_id) == ("rollout-of-three", "task")
    assert (newest.attempts, newest.state, newest.step) == (1, "succeeded", None)
    assert len(select_recent(connection, 2)) == 2


async def test_spans_that_name_a_rollout_and_no_attempt_come_with_their_trace(store, connect, make_span):
    named = make_span(1, trace=7, attributes={semconv.ROLLOUT_ID: "r"})
    below = make_span(2, trace=7, parent=1)
    lost = make_span(3, trace=7, parent=99)
    other = make_span(4, trace=8)
    await store.append([named, below, lost, other])
    connection = connect(store)
    connection.execute("BEGIN")
    found = select_spans_without_attempt(connection, "r")
    assert [span.span_id for span in found] == [named.span_id, below.span_id, lost.span_id]
    assert without_parent(connection, found) == (found[2],)
    assert select_named(connection, "r") == ["r"]


async def test_spans_that_have_not_come_are_counted(store, connect, make_span):
    numbered = {semconv.SEQUENCE: "n", semconv.SEQUENCE_NUMBER: 3, semconv.SEQUENCE_STARTED: 3}
    await store.append([make_span(1, attributes={semconv.ATTEMPT_ID: "a", **numbered})])
    connection = connect(store)
    assert select_lacking(connection, "a") == 2
    assert select_lacking(connection, "b") == 0

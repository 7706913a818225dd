"""Labels and verdicts are found among however many other spans."""

import sqlite3

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.store import SqliteStore
from lightning_trainer.store.tables import feedback, scores
from lightning_trainer.types import Span, SpanEvent


def evaluation(make_span, number: int, name: str, attempt: str, value: float) -> Span:
    event = {semconv.EVALUATION_NAME: name, semconv.EVALUATION_SCORE: value}
    return make_span(
        number,
        trace=number,
        name=f"evaluate {name}",
        attributes={semconv.ATTEMPT_ID: attempt},
        events=(SpanEvent(semconv.EVALUATION_EVENT, number, event),),
    )


async def told(store, *names: str) -> list[tuple[str, str, float]]:
    found = await store.scan(lambda connection: scores.select(connection, list(names)))
    return [(one.name, one.attempt_id, one.value) for one in found]


async def test_unrelated_spans_take_no_label_and_no_verdict_away(store, make_root, make_span, monkeypatch):
    monkeypatch.setattr(scores, "LOOKED_AT", 5)
    given = [evaluation(make_span, 2, "judge", "a", 0.5), evaluation(make_span, 3, "label", "a", 1.0)]
    await store.append([make_root(1, "a"), *given])
    await store.append([make_span(number) for number in range(10, 20)])
    await store.append([evaluation(make_span, number, "other", "a", 0.0) for number in range(20, 30)])
    assert await told(store, "judge", "label") == [("judge", "a", 0.5), ("label", "a", 1.0)]


async def test_the_newest_of_each_name_are_read_and_many_verdicts_take_no_label_away(store, make_span, monkeypatch):
    monkeypatch.setattr(scores, "LOOKED_AT", 2)
    await store.append([evaluation(make_span, 1, "label", "a0", 1.0)])
    await store.append([evaluation(make_span, number, "judge", f"a{number}", 0.5) for number in range(2, 6)])
    assert await told(store, "judge", "label") == [("judge", "a4", 0.5), ("judge", "a5", 0.5), ("label", "a0", 1.0)]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e10, True])
async def test_what_counts_as_missing_in_training_is_no_label(store, make_root, make_span, value):
    await store.append([make_root(1, "a"), evaluation(make_span, 2, "label", "a", 1.0)])
    await store.append([evaluation(make_span, 3, "label", "a", value)])
    assert await told(store, "label") == [("label", "a", 1.0)]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True])
async def test_feedback_is_not_compared_with_what_counts_as_missing(store, make_root, make_span, value):
    await store.append([make_root(1, "a"), evaluation(make_span, 2, "label", "a", 0.5)])
    await store.append([evaluation(make_span, 3, "label", "a", value)])
    verified = await store.scan(lambda connection: feedback.select_verified(connection, ["a"], ["label"]))
    assert verified == {"a": 0.5}


async def test_other_spans_are_not_even_passed_over(tmp_path):
    async with SqliteStore(tmp_path / "store.sqlite"):
        with sqlite3.connect(tmp_path / "store.sqlite") as connection:
            plan = connection.execute(f"EXPLAIN QUERY PLAN {scores.NEWEST}", ("evaluate judge", 1)).fetchall()
    assert "COVERING INDEX spans_of_evaluations" in str(plan)

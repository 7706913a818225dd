"""Spans go in once, in whatever order; what they say of attempts does not depend on the order either."""

import asyncio
import random
import sqlite3
import time
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lightning_instrumentation import semconv

from lightning_trainer.errors import MalformedTelemetryError, StoreError
from lightning_trainer.prompts.earned import Earned, earned_live
from lightning_trainer.store import SqliteStore, Store
from lightning_trainer.store.tables import cursors, evaluations, participations
from lightning_trainer.store.tables.spans import attempts_since, select_for_rewards
from lightning_trainer.store.worklist.forgetting import forget_rollout
from lightning_trainer.types import AttemptState, RolloutMode, Span, SpanStatus


async def test_a_span_comes_back_as_it_went_in(store: Store, make_root) -> None:
    span = make_root(1, "a", resource={"service.name": "agent"}, scope="x", error="it raised")
    assert await store.append([span]) == 1
    assert await store.spans_of_attempts(["a"]) == [span]


async def test_a_second_delivery_changes_nothing(store: Store, make_root) -> None:
    first = make_root(1, "a")
    assert await store.append([first, first]) == 1
    assert await store.append([make_root(1, "a", name="another content")]) == 0
    assert await store.spans_of_attempts(["a"]) == [first]


async def test_new_ones_among_known_ones_are_told_apart(store: Store, make_span) -> None:
    known, new = make_span(1), make_span(2)
    assert await store.append_new([known]) == [known]
    again = make_span(1, name="another content")
    assert await store.append_new([again, new, make_span(2, name="another content"), known]) == [new]
    assert (await store.counts())["spans"] == 2


async def test_the_same_span_id_in_another_trace_is_another_span(store: Store, make_span) -> None:
    assert await store.append([make_span(1, trace=1), make_span(1, trace=2)]) == 2


async def test_a_root_span_ends_its_attempt(store: Store, make_root) -> None:
    await store.append([make_root(5, "good"), make_root(3, "bad", error="ValueError: no")])
    good, bad = await store.attempt("good"), await store.attempt("bad")
    assert good is not None
    assert bad is not None
    assert (good.state, good.error, good.rollout_id, good.task_id, good.group_id) == (
        AttemptState.SUCCEEDED,
        None,
        "rollout-of-good",
        "task",
        "group",
    )
    assert (bad.state, bad.error) == (AttemptState.FAILED, "ValueError: no")
    assert [attempt.attempt_id for attempt in await store.ended_attempts()] == ["bad", "good"]
    assert await store.attempt("unknown") is None


async def test_an_attempt_is_running_until_its_root_arrives(store: Store, make_span, make_root) -> None:
    named = {semconv.ATTEMPT_ID: "a", semconv.ROLLOUT_ID: "rollout-of-a"}
    await store.append([make_span(8, attributes=named), make_span(7, attributes=named)])
    running = await store.attempt("a")
    assert running is not None
    assert (running.state, running.started_ns, running.ended_ns) == (AttemptState.RUNNING, 7, None)
    assert running.group_id == running.task_id == "rollout-of-a"
    assert await store.ended_attempts() == []
    await store.append([make_root(9, "a")])
    ended = await store.attempt("a")
    assert ended is not None
    assert (ended.state, ended.started_ns, ended.group_id) == (AttemptState.SUCCEEDED, 9, "group")


async def test_evaluations_are_kept_apart_from_training(store: Store, make_root) -> None:
    await store.append([make_root(1, "t"), make_root(2, "e", mode="evaluate"), make_root(3, "?", mode="typo")])
    assert [a.attempt_id for a in await store.ended_attempts()] == ["t"]
    assert [a.attempt_id for a in await store.ended_attempts(mode="evaluate")] == ["e", "?"]
    assert [a.attempt_id for a in await store.ended_attempts(mode=None)] == ["t", "e", "?"]
    assert [a.attempt_id for a in await store.attempts(mode=RolloutMode.EVALUATE, limit=1)] == ["?"]
    assert [a.attempt_id for a in await store.attempts(group_id="group", state="succeeded")] == ["t", "e", "?"]


async def test_baselines_are_neither_trained_nor_evaluations(store: Store, make_root) -> None:
    await store.append([make_root(1, "t"), make_root(2, "e", mode="evaluate"), make_root(3, "b", mode="baseline")])
    assert [a.attempt_id for a in await store.ended_attempts()] == ["t"]
    assert [a.attempt_id for a in await store.ended_attempts(mode="baseline")] == ["b"]
    assert await store.ended_by_group("gr") == {"group": 1}
    assert await store.ended_by_group("gr", mode=RolloutMode.BASELINE) == {"group": 1}


async def test_an_attempt_takes_everything_that_belongs_to_it(store: Store, make_root, make_span) -> None:
    own = {semconv.ATTEMPT_ID: "a", semconv.ROLLOUT_ID: "rollout-of-a"}
    other = {semconv.ATTEMPT_ID: "b", semconv.ROLLOUT_ID: "rollout-of-b"}
    mine = [
        make_root(1, "a"),
        make_span(2, trace=1, attributes={semconv.RESPONSE_ID: "chatcmpl-1"}),  # same trace
        make_span(3, trace=77, attributes={semconv.RESPONSE_ID: "chatcmpl-1"}),  # same response, no trace context
        make_span(4, trace=78, attributes=own),  # another trace, by its id
        make_span(5, trace=79, name="evaluate reward", attributes={semconv.ROLLOUT_ID: "rollout-of-a"}),  # late reward
    ]
    not_mine = [
        make_span(6, trace=1, attributes=other),  # another attempt in the same trace
        make_span(7, trace=80),
        make_span(8, trace=81, attributes={**other, semconv.RESPONSE_ID: "chatcmpl-1"}),
        make_span(9, trace=82, attributes={semconv.ROLLOUT_ID: "rollout-of-b"}),
    ]
    await store.append([*not_mine, *mine])
    assert await store.spans_of_attempts(["a"]) == mine
    assert await store.spans_of_attempts([]) == []


async def test_for_rewards_model_calls_are_left_out_and_long_arrays_are_empty(store: Store, make_root, make_span):
    own = {semconv.ATTEMPT_ID: "a", semconv.ROLLOUT_ID: "r"}
    root = make_root(1, "a")
    foreign = make_span(2, parent=1, attributes={**own, "prompt_token_ids": tuple(range(100))})
    calls = [
        make_span(3, parent=1, attributes={**own, semconv.OPERATION: semconv.CHAT}),
        make_span(4, parent=3, attributes=own, scope=semconv.GATEWAY_SCOPE),
    ]
    await store.append([root, foreign, *calls])
    slim = replace(foreign, attributes={**own, "prompt_token_ids": ()})
    assert await store.scan(partial(select_for_rewards, attempt_ids=["a"], calls=True)) == [root, slim, *calls]
    assert await store.scan(partial(select_for_rewards, attempt_ids=["a"], calls=False)) == [root, slim]
    used = {**own, semconv.PROMPT_NAME: "clerk", semconv.PROMPT_VERSION: 0}
    await store.append([make_span(5, parent=1, name="prompt clerk", attributes=used)])
    earned = await store.scan(partial(earned_live, name="clerk"))
    assert earned == {0: Earned(0, 1, 0, 0, None, None)}
    await store.drop("a", reason="an attack")
    assert await store.scan(partial(earned_live, name="clerk")) == {}


async def test_what_a_new_span_belongs_to_is_found_from_the_span(store: Store, make_root, make_span) -> None:
    response = {semconv.RESPONSE_ID: "chatcmpl-1"}
    await store.append([make_root(1, "a"), make_root(2, "b"), make_span(3, trace=1, attributes=response)])
    later = [
        (make_span(4, trace=1), ["a"]),
        (make_span(5, trace=77, attributes=response), ["a"]),
        (make_span(6, trace=1, attributes={semconv.ATTEMPT_ID: "b"}), ["b"]),
        (make_span(7, trace=79, attributes={semconv.ROLLOUT_ID: "rollout-of-b"}), ["b"]),
        (make_span(8, trace=80), []),
    ]
    for span, attempts in later:
        last = await store.last_span()
        assert await store.scan(partial(attempts_since, after=last)) == []
        await store.append([span])
        assert await store.scan(partial(attempts_since, after=last)) == attempts
        assert (span in await store.spans_of_attempts(["a", "b"])) == bool(attempts)


async def test_counts_say_what_is_there(store: Store, make_root, make_span) -> None:
    await store.append([make_root(1, "a"), make_root(2, "b", error="x"), make_span(3, scope=semconv.GATEWAY_SCOPE)])
    assert await store.counts() == {
        "spans": 3,
        "calls": 1,
        "rollouts": 2,
        "attempts": {"running": 0, "succeeded": 1, "failed": 1},
        "steps": {"assigned": 0, "trained": 0, "skipped": 0},
    }
    assert await store.has_rollout("rollout-of-a")
    assert not await store.has_rollout("rollout-of-z")


@pytest.mark.parametrize("odd", [r"\u0000", r"\\u0000", r"\\\u0000", r"\u0000\u0000", '"', "\u2028", "\u2400"])
async def test_any_text_is_an_id(store: Store, make_root, odd: str) -> None:
    span = make_root(1, f"a{odd}b")
    await store.append([span, make_root(2, "other")])
    assert await store.spans_of_attempts([f"a{odd}b"]) == [span]
    assert [one.attempt_id for one in await store.attempts(rollout_id="rollout-of-other")] == ["other"]
    await forget(store, f"rollout-of-a{odd}b")
    assert await store.append([span]) == 0
    assert (await store.counts())["spans"] == 1


async def forget(store: Store, rollout: str) -> None:
    await store.write(lambda connection: forget_rollout(connection, rollout, now_ns=time.time_ns()))


async def test_the_numbers_of_forgotten_spans_are_given_to_no_other(store: Store, make_root) -> None:
    await store.append([make_root(1, "old"), make_root(2, "private")])
    await store.begin_policy("p")
    await store.enroll("p")
    last = await store.last_span()
    found = partial(participations.find, takes_part=lambda span: True)
    _, cursor = await store.scan(lambda connection: found(connection))
    await forget(store, "rollout-of-private")
    assert await store.last_span() < last
    await store.append([make_root(3, "new"), make_root(1, "old"), make_root(4, "newer")])
    assert await store.last_span() >= last + 2
    assert await store.counts() | {"spans": 3} == await store.counts()
    assert [one.attempt.attempt_id for one in await store.waiting_attempts("p")] == ["new", "newer"]
    assert not await store.scan(lambda connection: participations.is_earlier(connection, "p", "new"))
    chat = make_root(5, "called", attributes={semconv.ATTEMPT_ID: "called", semconv.OPERATION: "chat"})
    await store.append([chat])
    seen, _ = await store.scan(lambda connection: found(connection, after=cursor))
    assert seen == {"called"}


async def test_all_may_be_forgotten(store: Store, make_root) -> None:
    await store.append([make_root(1, "a")])
    last = await store.last_span()
    await forget(store, "rollout-of-a")
    await store.append([make_root(2, "b")])
    assert await store.last_span() > last
    assert len(await store.spans_of_attempts(["b"])) == 1


async def test_an_evaluation_behind_a_forgotten_one_is_news(store: Store, make_root) -> None:
    await store.append([make_root(1, "a", mode="evaluate"), make_root(2, "b", mode="evaluate")])
    changed = await store.scan(lambda connection: evaluations.select_changed(connection, 0, 10))
    last = changed[-1][0]
    await store.write(lambda connection: cursors.move(connection, "verdicts/p", last))
    await forget(store, f"rollout-of-{changed[-1][1]}")
    await store.append([make_root(3, "c", mode="evaluate")])
    news = await store.scan(lambda connection: evaluations.select_changed(connection, last, 10))
    assert [attempt for _, attempt in news] == ["c"]


async def test_one_bad_span_refuses_its_own_delivery_only(store: Store, make_span) -> None:
    good, bad = make_span(1), make_span(2, attributes={"x": object()})
    results = await asyncio.gather(store.append([good]), store.append([make_span(3), bad]), return_exceptions=True)
    assert results[0] == 1
    assert isinstance(results[1], MalformedTelemetryError)
    assert (await store.counts())["spans"] == 1


async def test_concurrent_appends_count_every_span_once(store: Store, make_span) -> None:
    deliveries = [[make_span(n) for n in range(start, start + 10)] for start in range(1, 200, 5)]
    new = await asyncio.gather(*(store.append(spans) for spans in deliveries))
    distinct = {span.span_id for spans in deliveries for span in spans}
    assert sum(new) == len(distinct) == (await store.counts())["spans"]


_HISTORIES = count(1)
_names = st.sampled_from(["a", "b"])


@st.composite
def _histories(draw, number_of_history: int) -> list[Span]:
    """Spans of two attempts, some with parts of the identity missing, some roots twice."""
    spans = []
    for number in range(1, draw(st.integers(1, 8)) + 1):
        attempt = f"{draw(_names)}{number_of_history}"
        attributes: dict[str, str | bool] = {semconv.ATTEMPT_ID: attempt, semconv.ROLLOUT_ID: f"r-{attempt}"}
        for key in (semconv.TASK_ID, semconv.GROUP_ID):
            if draw(st.booleans()):
                attributes[key] = draw(_names)
        if draw(st.booleans()):
            attributes[semconv.ROLLOUT_MODE] = draw(st.sampled_from(["train", "evaluate", "baseline"]))
        if draw(st.booleans()):
            attributes[semconv.ROLLOUT_ROOT] = True
        start = draw(st.integers(0, 3))
        status = draw(st.sampled_from(SpanStatus))
        trace = f"{number_of_history + 1:032x}"
        spans.append(Span(trace, f"{number:016x}", None, "s", start, start + 1, attributes, status=status))
    return spans


# Three histories beside each other in one store: to make a store takes longer than all that is done with it.
@given(st.tuples(*map(_histories, range(3))), st.integers(0, 2**16))
@settings(max_examples=9, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_order_and_redelivery_change_nothing(make_store, histories, seed) -> None:
    spans = [span for history in histories for span in history]
    shuffled = [*spans, *spans]
    random.Random(seed).shuffle(shuffled)
    number = next(_HISTORIES)
    async with make_store(name=f"one-{number}") as one, make_store(name=f"two-{number}") as two:
        await one.append(spans)
        for span in shuffled:
            await two.append([span])
        assert await one.attempts() == await two.attempts()
        assert await one.counts() == await two.counts()
        names = [f"{name}{history}" for name in "ab" for history in range(3)]
        assert await one.spans_of_attempts(names) == await two.spans_of_attempts(names)


async def test_a_closed_store_says_so(make_store, make_span) -> None:
    store = make_store()
    with pytest.raises(StoreError, match="not open"):
        await store.append([make_span(1)])
    await store.open()
    with pytest.raises(StoreError, match="already open"):
        await store.open()
    await store.close()
    await store.close()
    with pytest.raises(StoreError, match="not open"):
        await store.counts()


async def test_a_second_daemon_is_refused_and_told_who_has_the_store(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    async with SqliteStore(path):
        with pytest.raises(StoreError, match=r"s\.sqlite is in use by another daemon \(process \d+\)"):
            await SqliteStore(path).open()
    async with SqliteStore(path):
        pass  # the first has let go


async def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match=r"has schema 99.*upgrade"):
        await SqliteStore(path).open()


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    path.write_text("this is a diary, not a database" * 100)
    with pytest.raises(StoreError, match="cannot be opened"):
        await SqliteStore(path).open()
    path.unlink()
    async with SqliteStore(path):
        pass  # the failed attempt left no lock behind

"""What was recorded outside of rollouts is erased by its trace or its response, and a task's rollouts by its name, on
each database."""

import sqlite3
import time
from contextlib import closing
from dataclasses import replace

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.config.store import StoreConfig
from lightning_trainer.errors import ForgetError
from lightning_trainer.samples.feedback.entries import Subject, feedback_span
from lightning_trainer.store import SqliteStore
from lightning_trainer.store.scan import read_only
from lightning_trainer.store.tables import feedback
from lightning_trainer.store.tables.rollouts import select_rated_tasks
from lightning_trainer.store.upkeep.backup import back_up
from lightning_trainer.store.upkeep.check import check
from lightning_trainer.store.worklist.forgetting import (
    forget_response,
    forget_rollout,
    forget_source,
    forget_task,
    forget_trace,
)
from lightning_trainer.types import SpanEvent


@pytest.fixture
def calls(make_span):
    """Calls of one trace, and the gateway's record of the first, which has a trace of its own."""
    named = [{semconv.RESPONSE_ID: name} for name in ("one", "two")]
    return [
        make_span(1, trace=1, name="agent"),
        make_span(2, trace=1, parent=1, attributes=named[0]),
        make_span(3, trace=1, parent=1, attributes=named[1]),
        make_span(4, trace=2, attributes=named[0]),
    ]


def said(**subject):
    return feedback_span(Subject(**subject), source="u", kind="person", name="feedback", value=1.0)


async def erase(store, forget, name):
    return await store.write(lambda connection: forget(connection, name, now_ns=time.time_ns()))


async def left(store) -> list[str]:
    rows = await store.scan(lambda c: c.execute("SELECT span_id FROM spans ORDER BY span_id").fetchall())
    return [span_id.lstrip("0") for (span_id,) in rows]


async def test_a_response_is_forgotten_with_all_records_of_its_call_and_feedback_on_it(store, calls):
    given = [said(response_id="one"), said(response_id="two")]
    await store.append([*calls, *given])
    done = await erase(store, forget_response, "one")
    assert (done.name, done.feedback, done.attempts, done.spans) == ("one", 1, 0, 3)
    assert set(await left(store)) == {"1", "3", given[1].span_id.lstrip("0")}
    assert await store.append([calls[1], calls[3], given[0]]) == 0, "the spool sends it once more"
    with pytest.raises(ForgetError, match="nothing of a response 'one' is stored; check the id"):
        await erase(store, forget_response, "one")


async def test_a_trace_is_forgotten_with_what_was_recorded_elsewhere_of_its_responses(store, calls):
    given = [said(trace_id=f"{1:032x}"), said(response_id="two")]
    await store.append([*calls, *given])
    done = await erase(store, forget_trace, f"{1:032x}")
    assert (done.feedback, done.spans) == (2, 6)
    assert await left(store) == []
    assert await store.append([*calls, *given]) == 0
    later = replace(said(trace_id=f"{9:032x}"), trace_id=f"{8:032x}")
    assert await store.append([later]) == 1


@pytest.mark.parametrize("forget", [forget_trace, forget_response])
async def test_what_is_part_of_a_rollout_is_erased_with_it(store, make_root, make_span, forget):
    root = make_root(1, "a")
    call = make_span(2, trace=1, parent=1, attributes={semconv.RESPONSE_ID: "one"})
    await store.append([root, call])
    with pytest.raises(ForgetError, match="is part of rollout 'rollout-of-a': `lightning-trainer forget --rollout"):
        await erase(store, forget, root.trace_id if forget is forget_trace else "one")
    assert await left(store) == ["1", "2"]


async def test_a_call_whose_feedback_was_forgotten_is_sound(tmp_path, make_span):
    """Before, `store check` called it damaged, and `store repair` deleted it."""
    told = {semconv.EVALUATION_NAME: "helpful", semconv.EVALUATION_SCORE: 1.0, semconv.FEEDBACK_SOURCE: "ann"}
    ids = {semconv.RESPONSE_ID: "one", semconv.ROLLOUT_ID: "r", semconv.ATTEMPT_ID: "a", semconv.OPERATION: "chat"}
    call = replace(make_span(1, attributes=ids), name="chat", events=(SpanEvent(semconv.EVALUATION_EVENT, 5, told),))
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        await store.append([call])
        done = await erase(store, forget_source, "ann")
        assert done.feedback == 1
        assert await left(store) == ["1"]
    with read_only(tmp_path / "lightning.sqlite") as connection:
        assert {one.what: one.number for one in check(connection)}["spans"] == 0


async def test_a_trace_of_the_programs_own_that_a_rollout_was_made_in_is_erased_with_the_rollout(store, attempt_spans):
    """Before: it was said to be erased, and the rollout and its reward stayed."""
    outer = {semconv.OUTER_SPAN: f"{'c' * 32}-{'1' * 16}"}
    spans = [replace(one, attributes={**one.attributes, **outer}) for one in attempt_spans("a0", [1], 10)]
    await store.append([*spans, said(trace_id="c" * 32)])
    with pytest.raises(ForgetError, match="part of rollout 'r-a0': `lightning-trainer forget --rollout r-a0` erases"):
        await erase(store, forget_trace, "c" * 32)
    assert len(await left(store)) == len(spans) + 1
    done = await erase(store, forget_rollout, "r-a0")
    assert (done.attempts, done.feedback, await left(store)) == (1, 1, [])


@pytest.mark.parametrize("shared", [False, True])
async def test_feedback_that_names_the_trace_of_a_forgotten_rollout_is_not_stored_again(store, attempt_spans, shared):
    """Before: redelivered, it was stored and waited for a rollout for ever."""

    def within(attempt_id):
        outer = {semconv.OUTER_SPAN: f"{'c' * 32}-{'1' * 16}"}
        return [replace(one, attributes={**one.attributes, **outer}) for one in attempt_spans(attempt_id, [1], 10)]

    praise = said(trace_id="c" * 32)
    await store.append([*within("a0"), *(within("a1") if shared else ()), praise])
    await erase(store, forget_rollout, "r-a0")
    late = said(trace_id="c" * 32, rollout_id="r-a1")
    assert await store.append([praise]) == 0
    assert await store.append([replace(late, start_ns=15, end_ns=15)]) == int(shared)


@pytest.mark.parametrize("known", [True, False], ids=["stored before", "in a spool"])
@pytest.mark.parametrize("name", ["chat m", "evaluate feedback"])
async def test_feedback_that_an_event_alone_tells_the_source_of_is_not_stored_again(store, attempt_spans, name, known):
    """Before: only a source among the span's own attributes was known again."""
    root, call = attempt_spans("a0", [1], 10)

    def event(source: str, at_ns: int) -> SpanEvent:
        told = {semconv.EVALUATION_NAME: "feedback", semconv.EVALUATION_SCORE: 1.0, semconv.FEEDBACK_SOURCE: source}
        return SpanEvent(semconv.EVALUATION_EVENT, at_ns, told)

    carrier = replace(call, name=name, events=(event("u", 15), SpanEvent("other", 15, {})))
    given = [root, carrier, said(rollout_id="r-a0")]
    await store.append(given if known else [root, given[2]])
    await erase(store, forget_source, "u")
    assert await store.append(given) == int(name == "chat m" and not known)
    assert await store.scan(feedback.select) == []
    (event_names,) = [
        [one.name for one in span.events]
        for span in await store.spans_of_attempts(["a0"])
        if span.span_id == carrier.span_id
    ] or [[]]
    assert event_names == (["other"] if name == "chat m" else [])
    later = [
        replace(carrier, span_id="f" * 16, events=(event("u", time.time_ns()),)),
        replace(carrier, span_id="e" * 16, events=(event("v", 15),)),
    ]
    assert await store.append(later) == 2, "what is said later, and what others said, is new"
    assert [one.source for one in await store.scan(feedback.select)] == ["u", "v"]


async def test_what_was_forgotten_is_in_no_byte_of_the_store_nor_of_a_backup_made_afterwards(tmp_path, attempt_spans):
    """Before: it stayed in free pages and in the log, and every later backup copied the former."""
    path, config = tmp_path / "lightning.sqlite", StoreConfig()

    def copies() -> set[str]:
        files = [*tmp_path.glob("lightning.sqlite*"), *tmp_path.glob("backup-*/*")]
        return {file.name for file in files if b"marker" in file.read_bytes()}

    async with SqliteStore(path, config) as store:
        for attempt in range(40):
            for words in (20, 2_000):  # in a page of its own, and in pages with others
                spans = attempt_spans(f"{attempt}-{words}", [1], 10)
                text = "marker " * words if attempt == 7 else "another " * words
                said = {**spans[1].attributes, semconv.OUTPUT_MESSAGES: text}
                await store.append([spans[0], replace(spans[1], attributes=said)])
        with closing(sqlite3.connect(path)) as beside:
            beside.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        await store.append(attempt_spans("later", [1], 10))
        assert copies() == {"lightning.sqlite"}
        for name in ("r-7-20", "r-7-2000"):
            await store.erase(lambda connection, name=name: forget_rollout(connection, name, now_ns=time.time_ns()))
        await store.write(lambda _: None)  # the log is emptied after the commit
        assert copies() == set()
        back_up(tmp_path, tmp_path / "backup-1", {})
        assert copies() == set()
        assert len(await left(store)) > 100, "the others stay"


async def test_the_log_is_emptied_when_the_last_reader_of_what_was_forgotten_is_done(tmp_path, attempt_spans):
    path = tmp_path / "lightning.sqlite"
    async with SqliteStore(path, StoreConfig()) as store:
        await store.append(attempt_spans("marker", [1], 10))
        with read_only(path) as reader:
            assert reader.execute("SELECT count(*) FROM spans").fetchone() == (2,)
            await store.erase(lambda connection: forget_rollout(connection, "r-marker", now_ns=time.time_ns()))
            await store.write(lambda _: None)
            assert path.with_name("lightning.sqlite-wal").stat().st_size > 0
        await store.write(lambda _: None)
        await store.write(lambda _: None)
        assert path.with_name("lightning.sqlite-wal").stat().st_size == 0


async def test_a_name_of_a_task_erases_no_rollout_and_does_not_read_as_if_it_had(store, make_root):
    """Before: ``forget --rollout`` of a task erased only feedback that named it, and said that it was forgotten."""
    await store.append([make_root(number, name) for number, name in enumerate("abcd", 1)])
    await store.append([said(rollout_id="task")])
    sentence = (
        "'task' is a task and not a rollout; its rollouts are rollout-of-a, rollout-of-b, rollout-of-c and 1 "
        "more: forget one of them, or all with `lightning-trainer forget --task task`"
    )
    with pytest.raises(ForgetError) as error:
        await erase(store, forget_rollout, "task")
    assert str(error.value) == sentence
    assert len(await left(store)) == 5
    await store.append([said(rollout_id="z"), said(rollout_id="task", attempt_id="a"), said(rollout_id="rollout-of-a")])
    assert await store.scan(select_rated_tasks) == [("task", 1)]


async def test_a_task_is_forgotten_with_all_its_rollouts_and_feedback_that_takes_it_for_one(store, make_root):
    root = make_root(9, "other")
    other = replace(root, attributes={**root.attributes, semconv.TASK_ID: "another"})
    ours = [make_root(1, "a"), make_root(2, "b"), said(rollout_id="task"), said(rollout_id="rollout-of-b")]
    await store.append([other, *ours])
    done = await erase(store, forget_task, "task")
    assert (done.name, done.attempts, done.feedback, done.spans) == ("task", 2, 2, 4)
    assert await left(store) == ["9"]
    assert await store.append(ours) == 0, "the spool sends it once more"
    for name in ("task", "rollout-of-other", "nothing"):
        with pytest.raises(ForgetError, match=f"nothing of a task '{name}' is stored"):
            await erase(store, forget_task, name)

"""Feedback in the store, on each database: no reward outlives what it is made of, and what is early finds its spans."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.config.sections import FeedbackConfig
from lightning_trainer.config.store import StoreConfig
from lightning_trainer.daemon.rewards.feedback import FeedbackSettler
from lightning_trainer.errors import ForgetError
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.samples.feedback.entries import Subject, feedback_span
from lightning_trainer.store import Store
from lightning_trainer.store import schema as sqlite_schema
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.postgres import schema as postgres_schema
from lightning_trainer.store.retention import sweep
from lightning_trainer.store.tables import canaries, feedback
from lightning_trainer.store.tables.canaries import CanaryRecord
from lightning_trainer.store.upkeep import journal
from lightning_trainer.store.worklist.forgetting import forget_rollout, forget_source
from lightning_trainer.store.worklist.settling import Changes, look, not_released
from lightning_trainer.types import Span

OPEN = FeedbackConfig.model_validate({"quarantine": "0s"})


def said(source: str, value: float | None, **subject: str) -> Span:
    return feedback_span(Subject(**subject), source=source, kind="person", name="feedback", value=value)


async def rewards(store: Store, *attempts: str) -> dict[str | None, float | None]:
    reading = read_spans(await store.spans_of_attempts(attempts))
    return {one.attempt_id: one.value for one in reading.evaluations}


async def rows(store: Store, table: str) -> int:
    return await store.scan(lambda c: c.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


async def forget(store: Store, source: str) -> None:
    await store.write(lambda c: forget_source(c, source, now_ns=time.time_ns()))


class Meanwhile:
    """The store, where something else is committed as soon as feedback has been looked at."""

    def __init__(self, store: Store, other: Callable[[Any], Any]) -> None:
        self._store, self._other = store, other

    async def scan(self, query):
        found = await self._store.scan(query)
        if isinstance(found, Changes):
            await self._store.write(self._other)
        return found

    def __getattr__(self, name: str):
        return getattr(self._store, name)


async def test_a_source_that_is_forgotten_while_its_reward_is_made_leaves_none(store, attempt_spans):
    await store.append([*attempt_spans("a0", [1], 10), said("mallory", 1.0, rollout_id="r-a0")])
    meanwhile = Meanwhile(store, lambda c: forget_source(c, "mallory", now_ns=time.time_ns()))
    assert await FeedbackSettler(OPEN, meanwhile, meanwhile).settle() == 0  # pyright: ignore[reportArgumentType]
    assert (await rewards(store, "a0"), await rows(store, "settled")) == ({}, 0)


async def test_the_journal_has_a_reward_if_it_is_stored(make_store, attempt_spans, tmp_path):
    def in_journal() -> list[float | None]:
        spans = [span for record in journal.read(tmp_path / "journal", []) for span in record]
        return [one.value for one in read_spans(spans).evaluations]

    async with make_store(StoreConfig(journal=tmp_path / "journal")) as store:
        await store.append([*attempt_spans("a0", [1], 10), said("mallory", 1.0, rollout_id="r-a0")])
        meanwhile = Meanwhile(store, lambda c: forget_source(c, "mallory", now_ns=time.time_ns()))
        await FeedbackSettler(OPEN, meanwhile, meanwhile).settle()  # pyright: ignore[reportArgumentType]
        assert in_journal() == []
        await store.append([said("u1", 0.0, rollout_id="r-a0")])
        await FeedbackSettler(OPEN, store, store).settle()
        assert in_journal() == [0.0]


async def test_a_reward_that_came_back_from_the_journal_is_forgotten_with_its_source(
    make_store, attempt_spans, tmp_path
):
    async with make_store(StoreConfig(journal=tmp_path / "journal")) as store:
        await store.append([*attempt_spans("a0", [1], 10), said("mallory", 1.0, rollout_id="r-a0")])
        settler = FeedbackSettler(OPEN, store, store)
        await settler.settle()
        await store.append([said("u1", 0.0, rollout_id="r-a0")])
        await settler.settle()
        first = await store.scan(select_settled)
    async with make_store(name="restored") as store:
        for spans in journal.read(tmp_path / "journal", []):
            await store.append(spans)
        assert await store.scan(select_settled) == first
        assert await FeedbackSettler(OPEN, store, store).settle() == 0, "they are known"
        await forget(store, "mallory")
        assert await rewards(store, "a0") == {}


def within(spans: list[Span], trace_id: str) -> list[Span]:
    """Return an attempt's spans as made within a trace of the program's own."""
    outer = {semconv.OUTER_SPAN: f"{trace_id}-{'1' * 16}"}
    return [replace(span, attributes={**span.attributes, **outer}) for span in spans]


async def test_feedback_may_name_the_trace_of_the_program_that_an_attempt_was_made_in(store, attempt_spans):
    """Before, what Langfuse's page rates counted for nothing: it knows no trace but its own."""
    await store.append([said("u1", 1.0, trace_id="c" * 32)])
    await store.append(within(attempt_spans("a0", [1], 10), "c" * 32))
    settler = FeedbackSettler(OPEN, store, store)
    await settler.settle()
    assert await rewards(store, "a0") == {"a0": 1.0}
    await store.append([said("u2", 0.0, trace_id="c" * 32)])
    await settler.settle()
    assert await rewards(store, "a0") == {"a0": 0.5}
    await store.append(within(attempt_spans("a1", [1], 20), "c" * 32))
    await store.append([said("u3", 0.0, trace_id="c" * 32)])
    await settler.settle()
    assert await rewards(store, "a0", "a1") == {"a0": 0.5}, "of two attempts in one trace, nobody knows which is meant"
    found = await store.write(lambda c: forget_rollout(c, "r-a0", now_ns=time.time_ns()))
    assert (found.feedback, await rows(store, "outer_traces")) == (2, 1)


@pytest.mark.parametrize("shared", ["the program's trace", "a response id"])
@pytest.mark.parametrize("arrived", [["a0", "a1"], ["a0"], []], ids=["both", "the other rollout", "neither"])
async def test_feedback_that_names_its_rollout_is_of_no_other_one_whatever_else_it_names(
    store, attempt_spans, shared, arrived
):
    """Before: of a trace with two rollouts, the one that had arrived first was rated for good."""

    def spans_of(name: str) -> list[Span]:
        spans = within(attempt_spans(name, [1], 10), "c" * 32)
        same = {semconv.RESPONSE_ID: "chatcmpl-1"}
        return [
            replace(span, attributes={**span.attributes, **same}) if semconv.RESPONSE_ID in span.attributes else span
            for span in spans
        ]

    about = {"trace_id": "c" * 32} if shared == "the program's trace" else {"response_id": "chatcmpl-1"}
    await store.append([span for name in arrived for span in spans_of(name)])
    await store.append([said("u1", 1.0, rollout_id="r-a1", **about)])
    settler = FeedbackSettler(OPEN, store, store)
    await settler.settle()
    assert await rewards(store, "a0", "a1") == ({"a1": 1.0} if "a1" in arrived else {})
    await store.append([span for name in ("a0", "a1") if name not in arrived for span in spans_of(name)])
    await settler.settle()
    assert await rewards(store, "a0", "a1") == {"a1": 1.0}


async def test_feedback_on_a_rollout_is_of_the_attempt_whose_trace_it_names(store, attempt_spans):
    """Before: of the last attempt, if the attempts' spans had come first."""
    first, second = (
        [replace(one, attributes={**one.attributes, semconv.ROLLOUT_ID: "r"}) for one in attempt_spans(name, [1], at)]
        for name, at in (("a0", 10), ("a1", 20))
    )
    await store.append([*first, *second, said("u1", 1.0, rollout_id="r", trace_id=first[0].trace_id)])
    await FeedbackSettler(OPEN, store, store).settle()
    assert await rewards(store, "a0", "a1") == {"a0": 1.0}


def select_settled(connection: Connection) -> list[tuple]:
    return connection.execute("SELECT * FROM settled ORDER BY target, number").fetchall()


async def test_what_others_say_is_settled_after_a_source_was_forgotten_meanwhile(store, attempt_spans):
    spans = [said("mallory", 1.0, rollout_id="r-a0"), said("u1", 0.0, rollout_id="r-a0")]
    await store.append([*attempt_spans("a0", [1], 10), *spans])
    settler = FeedbackSettler(OPEN, store, store)
    settler._store = Meanwhile(store, lambda c: forget_source(c, "mallory", now_ns=time.time_ns()))  # pyright: ignore
    await settler.settle()
    settler._store = store
    assert (await settler.settle(), await rewards(store, "a0")) == (1, {"a0": 0.0})


async def test_a_rollout_that_is_forgotten_while_its_reward_is_made_leaves_nothing(store, attempt_spans):
    await store.append([*attempt_spans("a0", [1], 10), said("u1", 1.0, rollout_id="r-a0")])
    meanwhile = Meanwhile(store, lambda c: forget_rollout(c, "r-a0", now_ns=time.time_ns()))
    assert await FeedbackSettler(OPEN, meanwhile, meanwhile).settle() == 0  # pyright: ignore[reportArgumentType]
    assert (await rows(store, "spans"), await rows(store, "settled")) == (0, 0)


async def test_a_rollout_is_forgotten_with_feedback_that_has_not_found_it_yet(store, attempt_spans):
    spans = attempt_spans("a0", [1], 10)
    subjects = [
        {"rollout_id": "r-a0"},
        {"attempt_id": "a0"},
        {"response_id": "response-a0"},
        {"trace_id": spans[0].trace_id},
    ]
    others = [said("u1", 1.0, rollout_id="r-b0"), said("u1", 1.0, trace_id="f" * 32)]
    await store.append([said("u1", 1.0, **subject) for subject in subjects] + others)
    await store.append(spans)
    done = await store.write(lambda c: forget_rollout(c, "r-a0", now_ns=time.time_ns()))
    assert (done.feedback, done.spans) == (4, len(spans) + 4)
    assert (await rows(store, "spans"), await rows(store, "feedback")) == (2, 2)
    done = await store.write(lambda c: forget_rollout(c, "r-b0", now_ns=time.time_ns()))
    assert (done.attempts, done.feedback, done.spans) == (0, 1, 1), "of which nothing else has come"
    with pytest.raises(ForgetError, match="nothing of a rollout 'r-b0' is stored"):
        await store.write(lambda c: forget_rollout(c, "r-b0", now_ns=time.time_ns()))


async def test_nothing_of_a_forgotten_rollout_is_stored_again_whatever_it_is_known_by(
    store, attempt_spans, make_span, reward_span
):
    spans = attempt_spans("a0", [1], 10)
    inside = make_span(10**6, trace=int(spans[0].trace_id, 16))  # of a tracer that names the attempt at the root alone
    subjects = [
        {"rollout_id": "r-a0"},
        {"attempt_id": "a0"},
        {"response_id": "response-a0"},
        {"trace_id": spans[0].trace_id},
    ]
    given = [*spans, inside, reward_span(1.0, rollout="r-a0"), *(said("u1", 1.0, **subject) for subject in subjects)]
    assert await store.append(given) == len(given)
    await store.write(lambda c: forget_rollout(c, "r-a0", now_ns=time.time_ns()))
    assert await rows(store, "spans") == 0
    assert [await store.append([span]) for span in given] == [0] * len(given)
    assert (await rows(store, "spans"), await rows(store, "feedback")) == (0, 0)
    assert await store.append([said("u1", 1.0, rollout_id="r-a0"), make_span(10**7, trace=10**6)]) == 2, "they are new"


async def test_two_daemons_that_settle_at_once_leave_no_reward_that_a_forgotten_source_is_in(store, attempt_spans):
    await store.append([*attempt_spans("a0", [1], 10), said("mallory", 1.0, rollout_id="r-a0")])
    found: list[Any] = []

    class Slow(Meanwhile):
        """Another daemon is told more, and settles it, between this one's look and its write."""

        async def scan(self, query):
            looked = await self._store.scan(query)
            if isinstance(looked, Changes) and not found:
                found.append(looked)
                await self._store.append([said("u1", 0.0, rollout_id="r-a0")])
                await FeedbackSettler(OPEN, self._store, self._store).settle()
            return looked

    slow = Slow(store, lambda c: None)
    settler = FeedbackSettler(OPEN, slow, slow)  # pyright: ignore[reportArgumentType]
    for _ in range(2):
        await settler.settle()
    assert await rewards(store, "a0") == {"a0": pytest.approx(0.5)}
    await forget(store, "mallory")
    assert await rewards(store, "a0") == {}
    await settler.settle()
    assert await rewards(store, "a0") == {"a0": 0.0}


async def test_every_source_that_is_forgotten_is_noticed_whatever_the_clocks_say(store, attempt_spans):
    spans = [said(who, value, rollout_id="r-a0") for who, value in (("m1", 1.0), ("m2", 1.0), ("u1", 0.0))]
    await store.append([*attempt_spans("a0", [1], 10), *spans])
    settler = FeedbackSettler(OPEN, store, store)
    await settler.settle()
    now_ns = time.time_ns()
    await store.write(lambda c: forget_source(c, "m1", now_ns=now_ns))
    await settler.settle()
    await store.write(lambda c: forget_source(c, "m2", now_ns=now_ns - 10**9))  # by a daemon whose clock is behind
    await settler.settle()
    assert await rewards(store, "a0") == {"a0": 0.0}


@pytest.mark.parametrize("subject", [{"attempt_id": "a0"}, {"attempt_id": "a0", "response_id": "response-a0"}])
async def test_feedback_on_an_attempt_that_comes_before_its_spans_finds_it(store, attempt_spans, subject):
    await store.append([said("u1", 1.0, **subject)])
    settler = FeedbackSettler(OPEN, store, store)
    assert await settler.settle() == 0
    await store.append(attempt_spans("a0", [1], 10))
    assert (await settler.settle(), await rewards(store, "a0")) == (1, {"a0": 1.0})


async def test_what_is_older_than_feedback_of_many_strangers_finds_its_spans(store, attempt_spans):
    def of_strangers(number: int) -> list[Span]:
        return [said("stranger", 1.0, rollout_id=f"never-seen-{number}-{one}") for one in range(600)]

    await store.append([*of_strangers(1), said("u1", 1.0, rollout_id="r-a0"), *of_strangers(2)])
    await store.append(attempt_spans("a0", [1], 10))
    settler = FeedbackSettler(FeedbackConfig.model_validate({"quarantine": "0s", "source_per_hour": 5}), store, store)
    assert sum([await settler.settle() for _ in range(5)]) == 1
    for number in (3, 4):  # it goes on from where it was, round and round
        await store.append([said(f"u{number}", 1.0, rollout_id=f"r-b{number}"), *of_strangers(number)])
        await store.append(attempt_spans(f"b{number}", [1], 10))
        assert sum([await settler.settle() for _ in range(10)]) == 1


async def test_feedback_over_a_cap_is_named_in_the_log_once_an_hour(store, attempt_spans, caplog):
    await store.append([span for number in range(8) for span in attempt_spans(f"a{number}", [1], 10)])
    config = FeedbackConfig.model_validate({"quarantine": "0s", "source_per_hour": 2})
    settler = FeedbackSettler(config, store, store)
    for some in (range(2), range(2, 5), range(5, 8)):
        await store.append([said("busy", 1.0, rollout_id=f"r-a{number}") for number in some])
        await settler.settle()
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "feedback of 'busy' exceeds the caps of this hour and does not count: [feedback] source_per_hour = 2 and "
        "all_per_hour = 20000; raise them if people do say so much, or list the source in trusted"
    ]


async def test_a_look_at_what_has_no_attempt_yet_is_bounded(store, attempt_spans):
    await store.append([said("u1", 1.0, rollout_id=f"r-{number}") for number in range(1200)])
    await store.append([span for number in range(1200) for span in attempt_spans(str(number), [1], 10)])
    found = [await store.write(feedback.match) for _ in range(4)]
    assert (sum(found), max(found)) == (1200, 500)


async def test_feedback_from_before_named_attempts_were_kept_finds_its_attempt(make_store, attempt_spans, monkeypatch):
    def early(connection: Connection) -> None:
        """What an earlier version wrote, of which only the span has the attempt's id."""
        connection.execute("INSERT INTO resources(id, body) VALUES (1, ?)", (b"",))
        connection.execute(
            """INSERT INTO spans(trace_id, span_id, name, start_ns, end_ns, attempt_id, scope, resource_id, body)
               VALUES ('t', 's', 'evaluate feedback', 1, 1, 'a0', 'lightning.feedback', 1, ?)""",
            (b"",),
        )
        connection.execute(
            """INSERT INTO feedback(trace_id, span_id, source, kind, name, value, taken_back, edited, given_ns,
               received_ns) VALUES ('t', 's', 'u1', 'person', 'feedback', 1.0, 0, 0, 1, 1)"""
        )

    with monkeypatch.context() as before:
        before.setattr(sqlite_schema, "MIGRATIONS", sqlite_schema.MIGRATIONS[:10])
        before.setattr(postgres_schema, "MIGRATIONS", postgres_schema.MIGRATIONS[:3])
        async with make_store() as store:
            await store.write(early)
    async with make_store() as store:
        await store.append(attempt_spans("a0", [1], 10))
        assert await store.write(feedback.match) == 1


@pytest.mark.parametrize("first", ["the attempt's name", "the feedback"])
async def test_nothing_is_left_of_a_reward_when_neither_its_attempt_nor_feedback_on_it_is(store, attempt_spans, first):
    """Before: one row stayed for each rated answer, for ever."""
    spans = [said("u1", 1.0, rollout_id="r-a0"), said("u1", 1.0, rollout_id="r-b0")]
    await store.append([*attempt_spans("a0", [1], 10), *attempt_spans("b0", [1], 10), *spans])
    settler = FeedbackSettler(OPEN, store, store)
    await settler.settle()
    steps = [
        lambda c: (sweep.expire_attempt(c, "a0", 1), sweep.forget_names(c, 2)),
        lambda c: c.execute("UPDATE feedback SET received_ns = 1 WHERE attempt_id = 'a0'").rowcount,
    ]
    for number, step in enumerate(steps if first == "the attempt's name" else reversed(steps)):
        await store.write(step)
        await store.append([said("u2", float(number), rollout_id="r-b0")])
        assert await settler.settle() == 1, "of what is kept of the other, no reward is made again"
    assert {attempt_id for _, _, attempt_id, *_ in await store.scan(select_settled)} == {"b0"}
    assert await rewards(store, "a0") == {}


SECOND = 10**9


async def arrive(store: Store, number: int, *, source: str = "", edited: int = 0, first_ns: int = SECOND) -> None:
    """Keep a number of pieces of feedback, one in a second, each on an attempt of its own."""
    insert = """INSERT INTO feedback(trace_id, span_id, source, kind, name, attempt_id, value, taken_back, edited,
        given_ns, received_ns) VALUES (?, ?, ?, 'person', 'feedback', ?, 1.0, 0, ?, ?, ?)"""

    def rows(place: int) -> tuple:
        at_ns = first_ns + place * SECOND
        return (f"t{at_ns}", "s", source or f"u{place}", f"a{at_ns // SECOND}", edited, at_ns, at_ns)

    await store.write(lambda c: c.executemany(insert, [rows(place) for place in range(number)]))


async def test_all_feedback_counts_when_its_quarantine_is_over_however_much_came_after_it(store, monkeypatch):
    monkeypatch.setattr(feedback, "READ", 20)
    config = FeedbackConfig.model_validate({"quarantine": "100s", "trusted": ["crm"]})
    await arrive(store, 200)  # five times as much in quarantine as is read
    counted: set[str] = set()
    for now_s in range(0, 310, 10):
        seen = await store.scan(lambda c, now_s=now_s: look(c, config, now_s * SECOND))
        new = {one.attempt_id for one in seen.outcomes} - counted
        assert new == {f"a{at_s}" for at_s in range(now_s - 109, now_s - 99) if 1 <= at_s <= 200}
        counted |= new
    assert len(counted) == 200
    await arrive(store, 1, source="crm", first_ns=300 * SECOND)
    seen = await store.scan(lambda c: look(c, config, 300 * SECOND))
    assert "a300" in {one.attempt_id for one in seen.outcomes}, "a trusted source does not wait"


async def test_the_next_one_out_of_quarantine_is_the_oldest_of_all_that_wait(store, monkeypatch):
    monkeypatch.setattr(feedback, "READ", 20)
    config = FeedbackConfig.model_validate({"quarantine": "100s"})
    await arrive(store, 60)
    seen = await store.scan(lambda c: look(c, config, 110 * SECOND))
    assert seen.next_release_ns == 111 * SECOND
    seen = await store.scan(lambda c: look(c, config, 150 * SECOND))
    assert seen.next_release_ns == 151 * SECOND
    assert (await store.scan(lambda c: look(c, config, 160 * SECOND))).next_release_ns is None


async def test_an_edit_is_held_until_its_quarantine_is_over_however_much_came_after_it(store, monkeypatch):
    monkeypatch.setattr(feedback, "READ", 20)
    config = FeedbackConfig.model_validate({"quarantine": "100s", "trusted": ["crm"]})
    await arrive(store, 1, edited=1)
    await arrive(store, 1, edited=1, source="crm", first_ns=2 * SECOND)
    await arrive(store, 60, first_ns=3 * SECOND)
    for now_s, held in ((99, True), (101, False)):
        keys = await store.scan(lambda c, now_s=now_s: not_released(c, config, now_s * SECOND))
        assert ((f"t{SECOND}", "s") in keys, (f"t{2 * SECOND}", "s") in keys) == (held, False)


async def test_what_was_said_in_an_hour_is_counted_by_source(store):
    await arrive(store, 3, source="u1")
    await arrive(store, 2, source="u2", first_ns=10 * SECOND)
    assert await store.scan(lambda c: feedback.said_lately(c, 2 * SECOND)) == {"u1": 2, "u2": 2}


@pytest.mark.parametrize("name", ["r-a0", "a0"])
async def test_a_rollout_is_forgotten_with_what_a_candidate_answered_beside_it(store, attempt_spans, name):
    await store.append([*attempt_spans("a0", [1], 10), *attempt_spans("a1", [1], 10)])
    for live in ("a0", "a1"):
        _, beside = attempt_spans(f"{live}.shadow-v3", [1], 10)
        attributes = {**beside.attributes, semconv.ROLLOUT_ID: f"r-{live}.shadow-v3", semconv.ROLLOUT_MODE: "shadow"}
        await store.append([replace(beside, attributes=attributes)])
    done = await store.write(lambda c: forget_rollout(c, name, now_ns=time.time_ns()))
    assert (done.attempts, done.spans) == (2, 3)
    left = await store.spans_of_attempts(["a0", "a0.shadow-v3", "a1", "a1.shadow-v3"])
    assert {span.attributes[semconv.ATTEMPT_ID] for span in left} == {"a1", "a1.shadow-v3"}


async def test_what_a_candidate_answers_beside_a_rollout_after_it_was_forgotten_is_not_stored(store, attempt_spans):
    for version, ended_ns in ((2, 9), (3, None)):
        record = CanaryRecord("math", version, 1, "going_on", 1, ended_ns, {}, None)
        await store.write(lambda connection, record=record: canaries.put(connection, record))
    await store.append(attempt_spans("a0", [1], 10))
    await store.write(lambda c: forget_rollout(c, "r-a0", now_ns=time.time_ns()))
    stored = [await store.append(attempt_spans(f"{name}.shadow-v3", [1], 10)[1:]) for name in ("a0", "a1")]
    assert stored == [0, 1]

"""Feedback becomes a reward by its name, follows what its sources turn out to be worth, and is forgotten for good."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from lightning_instrumentation import semconv
from typer.testing import CliRunner

from lightning_trainer.cli.app import app as command_line
from lightning_trainer.config.sections import FeedbackConfig
from lightning_trainer.config.store import StoreConfig
from lightning_trainer.daemon.api.feedback import feedback_api
from lightning_trainer.daemon.rewards.feedback import FeedbackSettler
from lightning_trainer.errors import StoreError
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.samples.batches import build_batch
from lightning_trainer.samples.feedback.entries import Subject, feedback_span
from lightning_trainer.store import SqliteStore
from lightning_trainer.store.tables import feedback
from lightning_trainer.store.upkeep import journal
from lightning_trainer.store.upkeep.backup import back_up
from lightning_trainer.store.worklist import feedback_rewards
from lightning_trainer.store.worklist.forgetting import forget_rollout, forget_source
from lightning_trainer.types import (
    LedgerRow,
    Outcome,
    PolicyVersion,
    SpanEvent,
    StepReport,
    TrainingBatch,
    VersionState,
)

OPEN = FeedbackConfig.model_validate({"quarantine": "0s"})


@pytest.fixture
async def store(tmp_path, attempt_spans) -> AsyncIterator[SqliteStore]:
    """Two groups of two attempts."""
    async with SqliteStore(tmp_path / ".lightning" / "lightning.sqlite") as store:
        for number, attempt in enumerate(("a0", "a1", "b0", "b1")):
            spans = attempt_spans(attempt, [1, 2], time.time_ns() - 10**9 + 10 * number, task=attempt[0])
            await store.append(spans)
        yield store


def said(attempt: str, source: str, value: float | None, **more):
    subject = more.pop("subject", Subject(rollout_id=f"r-{attempt}"))
    return feedback_span(subject, source=source, kind="person", name="feedback", value=value, **more)


async def rewards(store: SqliteStore, *attempts: str) -> dict[str, float | None]:
    """The newest by attempt, as training reads them."""
    reading = read_spans(await store.spans_of_attempts(attempts or ("a0", "a1", "b0", "b1")))
    return {one.attempt_id or one.response_id or "": one.value for one in reading.evaluations if one.name == "feedback"}


async def test_feedback_becomes_a_reward_that_a_policy_trains_with(store, make_policy):
    await store.append([said("a0", "u1", 1.0), said("a1", "u1", 0.0), said("a1", "u2", 0.0)])
    settler = FeedbackSettler(OPEN, store, store)
    assert await settler.settle() == 2
    assert await settler.settle() == 0, "once"
    assert await rewards(store) == {"a0": 1.0, "a1": 0.0}
    reading = read_spans(await store.spans_of_attempts(["a0", "a1"]))
    assert {one.source for one in reading.evaluations} == {"feedback of 1 source", "feedback of 2 sources"}
    attempts = await store.attempts(attempt_ids=["a0", "a1"])
    policy = make_policy(group_size=2, groups_per_step=1, reward={"feedback": 2.0})
    build = build_batch(reading.calls, attempts, reading.evaluations, policy, 1)
    assert build.rewards.of_attempts == {"a0": 2.0, "a1": 0.0}
    assert build.batch is not None


async def test_it_waits_in_quarantine_and_comes_out_by_itself(store):
    await store.append([said("a0", "u1", 1.0)])
    settler = FeedbackSettler(FeedbackConfig.model_validate({"quarantine": "1s"}), store, store)
    assert await settler.settle() == 0
    await asyncio.sleep(1.1)
    assert (await settler.settle(), await rewards(store)) == (1, {"a0": 1.0})


async def test_a_reward_follows_what_is_said_later_until_a_step_has_taken_it(store):
    settler = FeedbackSettler(OPEN, store, store)
    await store.append([said("a0", "u1", 1.0), said("b0", "u1", 1.0)])
    await settler.settle()
    await store.assign(TrainingBatch("math", 1, ()), policy="math", step=1, attempt_ids=["b0"], ledger=[])
    await store.append([said("a0", "u2", 0.0), said("b0", "u2", 0.0)])
    assert await settler.settle() == 1
    assert await rewards(store) == {"a0": pytest.approx(0.5), "b0": 1.0}
    await store.append([said("a0", who, None, taken_back=True) for who in ("u1", "u2")])
    await settler.settle()
    assert await rewards(store) == {"b0": 1.0}


async def test_feedback_that_comes_before_its_spans_finds_them(store, attempt_spans):
    await store.append([said("c0", "u1", 1.0, subject=Subject(response_id="response-c0"))])
    settler = FeedbackSettler(OPEN, store, store)
    assert await settler.settle() == 0
    await store.append(attempt_spans("c0", [1], 10))
    assert await settler.settle() == 1
    assert await rewards(store, "c0") == {"c0": 1.0}


async def test_a_crash_while_a_reward_is_stored_leaves_none_that_nobody_can_take_back(store, monkeypatch):
    await store.append([said("a0", "u1", 1.0)])
    put, broken = feedback_rewards.put, [True]

    def crash(*given):
        if broken and broken.pop():
            raise RuntimeError("killed")
        return put(*given)

    monkeypatch.setattr(feedback_rewards, "put", crash)
    with pytest.raises(StoreError, match="killed"):
        await FeedbackSettler(OPEN, store, store).settle()
    assert await rewards(store) == {}
    await store.append([said("a0", "u2", 0.0)])  # the reward is another one by now
    await FeedbackSettler(OPEN, store, store).settle()
    assert await rewards(store) == {"a0": pytest.approx(0.5)}
    await store.write(lambda c: forget_source(c, "u1", now_ns=time.time_ns()))
    assert await rewards(store) == {}


async def test_a_source_that_verified_rewards_contradict_loses_its_say(store, attempt_spans, reward_span):
    for number in range(12):
        await store.append(attempt_spans(f"v{number}", [1], 100 + number))
        await store.append([said(f"v{number}", "liar", 1.0), reward_span(0.0, attempt=f"v{number}")])
    await store.append([said("a0", "liar", 1.0), said("a1", "liar", 1.0), said("a1", "honest", 0.25)])
    settler = FeedbackSettler(FeedbackConfig.model_validate({"quarantine": "0s", "verified": ["reward"]}), store, store)
    await settler.settle()
    assert await rewards(store, "a0", "a1") == {"a1": pytest.approx(0.25)}


async def step(store: SqliteStore, number: int, attempts: list[str], *, trained: bool = True) -> None:
    rows = [LedgerRow("solver", "math", 0, Outcome.TRAINED, "sampled", 7, 2)]
    batch = TrainingBatch("math", number, ())
    await store.assign(batch, policy="math", step=number, attempt_ids=attempts, ledger=rows)
    if trained:
        await store.finish_step("math", StepReport(number, {}, {}, 1, 1, 1, {}))


async def test_a_source_is_forgotten_and_what_it_said_cannot_be_delivered_again(store):
    spans = [said("a0", "mallory", 1.0), said("a1", "mallory", 0.0), said("a0", "u1", 0.0, correction="Better.")]
    await store.append(spans)
    settler = FeedbackSettler(OPEN, store, store)
    await settler.settle()
    await step(store, 1, ["a1"])
    done = await store.write(lambda c: forget_source(c, "mallory", now_ns=time.time_ns()))
    assert (done.feedback, done.edits, done.rewards) == (2, 0, 2)
    assert [(one.policy, one.step, one.state) for one in done.steps] == [("math", 1, "trained")]
    assert await rewards(store) == {}
    assert await store.append(spans[:2]) == 0, "the spool sends it once more"
    await settler.settle()
    assert await rewards(store) == {"a0": 0.0}, "made again of what others say"
    assert await store.append([said("b0", "mallory", 1.0)]) == 1, "what it says from now on is new"


async def test_a_rollout_is_forgotten_with_everything_of_it(store, attempt_spans):
    spans = attempt_spans("z0", [1, 2], 50)
    await store.append([*spans, said("z0", "u1", 1.0)])
    await FeedbackSettler(OPEN, store, store).settle()
    done = await store.write(lambda c: forget_rollout(c, "r-z0", now_ns=time.time_ns()))
    assert (done.attempts, done.feedback, done.rewards, done.spans) == (1, 1, 1, 4)
    assert await store.spans_of_attempts(["z0"]) == []
    assert await store.append(spans) == 0
    counted, there = await store.scan(
        lambda c: c.execute("SELECT value, (SELECT count(*) FROM spans) FROM totals WHERE name = 'spans'").fetchone()
    )
    assert counted == there


async def test_the_daemon_answers_and_says_which_versions_were_trained_with_it(store):
    await store.append([said("a0", "mallory", 1.0), said("b0", "u1", 1.0)])
    await FeedbackSettler(OPEN, store, store).settle()
    await step(store, 1, ["b0"])
    await step(store, 2, ["a0"])
    await step(store, 3, ["a1"])
    await step(store, 4, ["b1"], trained=False)
    await store.put_version(PolicyVersion("math", 1, 1, VersionState.RETIRED, 1))
    app = FastAPI()
    app.include_router(feedback_api(store, OPEN))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://daemon") as client:
        report = (await client.get("/lightning/feedback")).json()
        assert (report["feedback"], report["states"]["counted"], report["rewards"]) == (2, 2, 2)
        assert {one["source"]: one["weight"] for one in report["sources"]} == {"mallory": 1.0, "u1": 1.0}
        done = await client.post("/lightning/forget", json={"source": "mallory"})
        (made,) = done.json()["made_with"]
        assert (made["steps"], made["versions"], made["before"]) == ([2], [2, 3], 1)
        assert made["sentence"] == (
            "step 2 of policy math took it, so versions 2 to 3 were trained with it: `lightning-trainer rollback "
            "math@v1` goes back to before"
        )
        assert (await client.post("/lightning/forget", json={"source": "mallory"})).status_code == 404
        assert (await client.post("/lightning/forget", json={})).status_code == 422


async def test_the_commands_read_and_erase_the_store_of_a_stopped_daemon(store, tmp_path: Path, monkeypatch):
    await store.append([said("a0", "mallory", 1.0, correction="Better."), said("a0", "u[1]", 0.0)])
    await store.close()
    (tmp_path / "lightning.toml").write_text(
        '[[policy]]\nname = "math"\nagents = ["solver"]\nmodel = "random:tiny"\nreward = "feedback"\n'
    )
    monkeypatch.chdir(tmp_path)

    def run(*command: str, expect: int = 0):
        done = CliRunner().invoke(command_line, command, env={"COLUMNS": "200"}, catch_exceptions=False)
        assert done.exit_code == expect, done.output
        return done.output

    shown = await asyncio.to_thread(run, "feedback")
    assert "2 pieces of feedback: 2 quarantined; 0 rewards" in shown
    assert "u[1]" in shown
    told = json.loads(await asyncio.to_thread(run, "feedback", "--json"))
    assert {one["source"] for one in told["sources"]} == {"mallory", "u[1]"}
    explained = await asyncio.to_thread(run, "explain", "r-a0")
    assert "feedback on attempt a0 is stored (2 pieces) and has not become 'feedback'" in explained.replace("\n", " ")
    gone = await asyncio.to_thread(run, "forget", "--source", "mallory")
    assert gone.startswith("source mallory is forgotten: 1 piece of feedback (1 edited answer), 0 rewards made of it")
    assert "there is no feedback of source 'mallory'" in await asyncio.to_thread(
        lambda: run("forget", "--source", "mallory", expect=2)
    )
    erased = await asyncio.to_thread(run, "forget", "--rollout", "r-a0")
    assert erased.startswith("rollout r-a0 is forgotten: 1 attempt, 1 piece of feedback")
    assert "name what to forget" in await asyncio.to_thread(lambda: run("forget", expect=2))
    assert "journal" not in gone + erased


async def test_forget_says_that_the_journal_has_it_until_a_backup_after_the_next_start(tmp_path: Path, monkeypatch):
    state, folder = tmp_path / ".lightning", tmp_path / "journal"
    (tmp_path / "lightning.toml").write_text(f'[store]\njournal = "{folder}"\n')
    monkeypatch.chdir(tmp_path)

    def in_journal() -> int:
        return sum(len(spans) for spans in journal.read(folder, []))

    async with SqliteStore(state / "lightning.sqlite", StoreConfig(journal=folder)) as store:
        await store.append([said("a0", "mallory", 1.0)])
    done = await asyncio.to_thread(
        lambda: CliRunner().invoke(command_line, ["forget", "--source", "mallory"], env={"COLUMNS": "200"})
    )
    assert (
        f"the journal {folder} still has it until `lightning-trainer store backup` is run two minutes after"
        in done.output
    )
    async with SqliteStore(state / "lightning.sqlite", StoreConfig(journal=folder)):
        assert in_journal() == 1
    back_up(state, tmp_path / "backup", {}, journal=folder)
    assert in_journal() == 1, "a commit that was under way when the backup began may not be in it"
    journal.delete_before(folder, time.time_ns() + 121 * 10**9)  # as a backup does then
    assert in_journal() == 0


async def test_a_verified_reward_of_a_rollout_is_that_of_its_last_attempt(store, attempt_spans, reward_span):
    """Who praised the first attempt is not compared with what the second one earned."""
    again = attempt_spans("a0b", [1, 2], time.time_ns(), task="a")
    spans = [replace(one, attributes={**one.attributes, semconv.ROLLOUT_ID: "r-a0"}) for one in again]
    await store.append([*spans, reward_span(0.0, rollout="r-a0")])
    names = ["a0", "a0b"]
    found = await store.scan(lambda connection: feedback.select_verified(connection, names, ["reward"]))
    assert found == {"a0b": 0.0}


@pytest.mark.parametrize("way", ["forget", "expire"])
async def test_a_call_that_carries_feedback_as_an_event_stays_without_it(store, attempt_spans, way):
    """As OpenTelemetry's tracers may send it: what is erased is the feedback, and no attempt is torn apart."""
    root, call = attempt_spans("c", [1, 2], time.time_ns() - 10**9)
    (event,) = said("c", "u1", 1.0, correction="secret words").events
    await store.append([root, replace(call, events=(event, SpanEvent("other", call.end_ns, {})))])
    (before,) = read_spans(await store.spans_of_attempts(["c"])).calls
    if way == "forget":
        await store.write(lambda connection: forget_source(connection, "u1", now_ns=time.time_ns()))
    else:
        await store.write(lambda connection: feedback.expire(connection, time.time_ns() + 10**9))
    spans = await store.spans_of_attempts(["c"])
    assert read_spans(spans).calls == (before,)
    assert [event.name for span in spans for event in span.events] == ["other"]
    assert "secret words" not in repr(spans)
    assert await store.scan(feedback.select) == []

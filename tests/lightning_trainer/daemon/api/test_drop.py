"""What someone takes out is not trained, is in the ledger with its reason, and what was trained is refused."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from typer.testing import CliRunner

from lightning_trainer.cli.app import app as command_line
from lightning_trainer.daemon.api.rollback import RollbackRequests
from lightning_trainer.daemon.api.store import store_router
from lightning_trainer.daemon.loop.building import Builder
from lightning_trainer.daemon.watching.progress import Progress
from lightning_trainer.errors import DropError
from lightning_trainer.store import SqliteStore
from lightning_trainer.store.worklist.drops import Kind, drop
from lightning_trainer.store.worklist.forgetting import forget_rollout
from lightning_trainer.types import LedgerRow, Outcome, RolloutMode, StepReport, TrainingBatch


@pytest.fixture
async def store(tmp_path, attempt_spans, reward_span) -> AsyncIterator[SqliteStore]:
    """Two groups of three attempts with a spread of rewards each."""
    async with SqliteStore(tmp_path / ".lightning" / "lightning.sqlite") as store:
        await store.enroll("math")
        for number, attempt in enumerate(("a0", "a1", "a2", "b0", "b1", "b2")):
            spans = attempt_spans(attempt, [1, 2], time.time_ns() - 10**9 + 10 * number, task=attempt[0])
            await store.append([*spans, reward_span(float(attempt[1]), attempt=attempt)])
        yield store


async def take_out(store: SqliteStore, name: str, **options):
    return await store.write(lambda connection: drop(connection, name, reason="poison", **options))


async def test_a_dropped_attempt_is_accounted_for_by_the_next_step(store, make_policy, collecting_loop):
    policy = make_policy(group_size=2, groups_per_step=2)
    loop = collecting_loop(store, policy)
    dropped = await take_out(store, "a1")
    assert (dropped.kind, dropped.attempts, dropped.already) == (Kind.ROLLOUT, 1, 0)
    assert (await take_out(store, "a1")).already == 1
    attempts = (await loop.steps.collect()).next_step(2)
    assert attempts is not None
    assert {one.attempt_id for one in attempts} == {"a0", "a2", "b0", "b1", "b2"}
    (out,) = loop.steps._worklist.dropped
    assert (out.attempt_id, out.mode) == ("a1", RolloutMode.DROPPED)
    stored = asyncio.Event()
    builder = Builder(policy, store=store, progress=Progress(), rollbacks=RollbackRequests(wake=stored), stored=stored)
    build = await builder.build((*attempts, out), 1)
    assert build is not None
    assert build.batch is not None
    assert {sample.attempt_id for sample in build.batch.samples} == {"a0", "a2", "b0", "b1", "b2"}
    assert [(row.outcome, row.calls) for row in build.ledger if row.reason == "dropped"] == [(Outcome.DROPPED, 1)]
    await store.assign(build.batch, policy="math", step=1, attempt_ids=["a1"], ledger=build.ledger)
    await loop.steps.collect()
    assert loop.steps._worklist.dropped == (), "once"


async def test_a_group_of_which_all_is_dropped_makes_no_step(store, make_policy, collecting_loop):
    loop = collecting_loop(store, make_policy(group_size=2, groups_per_step=1))
    for name in ("a0", "a1", "a2"):
        await take_out(store, name)
    collection = await loop.steps.collect()
    assert [group for group, _ in collection.ready] == ["b"]


async def _step(store: SqliteStore, step: int, attempts: list[str]) -> None:
    rows = [LedgerRow("solver", "math", 0, Outcome.TRAINED, "sampled", 7, 2)]
    rows += [LedgerRow("other", None, None, Outcome.DROPPED, "not_selected", 5, 1)]
    await store.assign(TrainingBatch("math", step, ()), policy="math", step=step, attempt_ids=attempts, ledger=rows)


async def test_a_step_that_is_not_trained_yet_becomes_a_skipped_one_and_its_ledger_balances(store):
    await _step(store, 1, ["a0", "a1"])
    assert (await take_out(store, "math@1")).attempts == 2
    assert str((await store.step("math", 1)).state) == "skipped"
    assert [(row.tokens, row.outcome, row.reason) for row in await store.ledger("math", 1)] == [
        (7, Outcome.DROPPED, "dropped"),
        (5, Outcome.DROPPED, "not_selected"),
    ]
    assert (await take_out(store, "1")).already == 2, "again changes nothing"
    assert (await store.counts())["steps"] == {"assigned": 0, "trained": 0, "skipped": 1}
    waiting = {one.attempt.attempt_id for one in await store.waiting_attempts("math")}
    assert waiting == {"a2", "b0", "b1", "b2"}, "what a step has consumed is in no other"


async def test_what_was_trained_is_refused_and_what_was_not_of_it_is_taken_out(store):
    await _step(store, 1, ["a0"])
    await store.finish_step("math", StepReport(1, {}, {}, 1, 1, 1, {}))
    await _step(store, 2, ["a1"])
    for name, sentence in (
        ("a0", "is in step 1 of policy 'math', which is trained: what was trained cannot be taken out"),
        ("a1", r"drop the step instead \(math@2\)"),
        ("math@1", "step 1 of policy 'math' is trained"),
        ("nobody", "there is no rollout or group or step 'nobody' in the store"),
        ("7", "there is no rollout or group or step '7'"),
    ):
        with pytest.raises(DropError, match=sentence):
            await take_out(store, name)


async def test_what_one_policy_has_trained_is_taken_from_the_others_that_still_would(store, make_policy):
    await store.enroll("coder")
    await store.enroll("critic")
    await store.take_part("coder", ["a0", "b0"])
    await _step(store, 1, ["a0", "b0", "b1"])
    await store.finish_step("math", StepReport(1, {}, {}, 1, 1, 1, {}))
    dropped = await take_out(store, "a0")
    assert (dropped.attempts, dropped.already, dropped.trained) == (1, 0, {"a0": 1})
    assert (await take_out(store, "a0")).already == 1
    modes = {one.attempt.attempt_id: one.attempt.mode for one in await store.waiting_attempts("coder")}
    assert (modes["a0"], modes["b0"]) == (RolloutMode.DROPPED, RolloutMode.TRAIN)
    await store.assign(None, policy="coder", step=1, attempt_ids=["b0", "b1"], ledger=[], state="skipped")
    with pytest.raises(DropError, match="what was trained cannot be taken out"):
        await take_out(store, "b0")


async def test_a_policy_without_a_part_in_it_is_no_reason_to_take_out_what_was_trained(store):
    await store.enroll("critic")
    await _step(store, 1, ["a0"])
    await store.finish_step("math", StepReport(1, {}, {}, 1, 1, 1, {}))
    with pytest.raises(DropError, match="is in step 1 of policy 'math', which is trained"):
        await take_out(store, "a0")


async def test_the_daemon_is_asked_and_a_loop_that_rests_wakes(store):
    await _step(store, 1, ["a0"])
    requests = RollbackRequests(wake=asyncio.Event())
    app = FastAPI()
    app.include_router(store_router(store, {"math": requests}))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://daemon") as client:
        done = await client.post("/lightning/drop", json={"name": "a1"})
        assert (done.status_code, done.json()["attempts"], requests.changed) == (200, 1, False)
        gone = await client.post("/lightning/drop", json={"name": "zzz"})
        assert (gone.status_code, "there is no rollout" in gone.json()["error"]["message"]) == (409, True)
        assert (await client.post("/lightning/drop", json={"nme": "a"})).status_code == 422
        await client.post("/lightning/drop", json={"name": "1", "kind": "step"})
    async with asyncio.timeout(10):
        await requests.wait()
    assert requests.changed


async def test_the_command_writes_into_a_stopped_daemons_store_and_explain_says_why(store, tmp_path: Path, monkeypatch):
    await store.close()
    (tmp_path / "lightning.toml").write_text('[[policy]]\nname = "math"\nagents = ["solver"]\nmodel = "random:tiny"\n')
    monkeypatch.chdir(tmp_path)

    def run(*command: str):
        return asyncio.to_thread(CliRunner().invoke, command_line, command)

    done = await run("drop", "a1", "--reason", "its tool was down")
    assert (done.exit_code, done.output) == (0, "rollout a1: 1 attempt will not be trained\n")
    explained = await run("explain", "a1")
    assert "is not trained: dropped: attempt a1 was taken out of what is trained: its tool was down" in explained.output
    refused = await run("drop", "a1", "--kind", "sample")
    assert (refused.exit_code, "--kind sample: there are rollout, group, step" in refused.output) == (2, True)


async def test_what_is_dropped_or_forgotten_while_its_step_is_built_is_not_trained(
    store, make_policy, collecting_loop, monkeypatch
):
    loop = collecting_loop(store, make_policy(group_size=2, groups_per_step=2))
    trained = []

    async def train(batch, seconds):
        trained.append({sample.attempt_id for sample in batch.samples})
        await loop.steps._metrics.step_ended(1)

    class Nothing:
        async def step_ended(self, step):
            pass

    monkeypatch.setattr(loop.steps, "_metrics", Nothing())
    monkeypatch.setattr(loop.steps._weights, "train", train)
    build, late = loop.steps._builder.build, [("a1", drop_it), ("b1", forget_it)]

    async def taken_out_meanwhile(*asked):
        built = await build(*asked)
        if late:
            name, how = late.pop()
            await how(store, name)
        return built

    monkeypatch.setattr(loop.steps._builder, "build", taken_out_meanwhile)
    async with asyncio.timeout(10):
        while not trained:
            attempts = await loop.steps.next_attempts(2)
            assert attempts is not None
            await loop.steps.take(attempts)
    assert trained == [{"a0", "a2", "b0", "b2"}]
    assert [(step.step, step.state) for step in await store.steps("math")] == [(1, "assigned")]


async def drop_it(store: SqliteStore, name: str) -> None:
    await take_out(store, name)


async def forget_it(store: SqliteStore, name: str) -> None:
    await store.write(lambda connection: forget_rollout(connection, name, now_ns=time.time_ns()))


async def test_a_step_that_waits_for_rewards_hears_that_attempts_are_dropped(store):
    requests = RollbackRequests(wake=asyncio.Event())
    app = FastAPI()
    app.include_router(store_router(store, {"math": requests}))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://daemon") as client:
        await client.post("/lightning/drop", json={"name": "a1"})
    assert requests._wake.is_set()
    assert not requests.changed

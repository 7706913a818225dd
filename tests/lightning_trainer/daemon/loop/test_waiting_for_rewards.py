"""A reward that arrives after the rollout has ended still counts, as long as its attempt is in no step."""

import asyncio
import time

import pytest

from lightning_trainer.daemon.api.rollback import RollbackRequests
from lightning_trainer.daemon.loop.building import Builder
from lightning_trainer.daemon.watching.notifying_store import NotifyingStore
from lightning_trainer.daemon.watching.progress import Progress
from lightning_trainer.store import SqliteStore


@pytest.fixture
async def daemon(tmp_path, make_policy, attempt_spans, reward_span):
    """Make a loop over two ended attempts of one group, of which only the first has a reward."""
    async with SqliteStore(tmp_path / "store.sqlite") as store:
        progress = Progress()
        sink = NotifyingStore(store)
        stored = sink.watch("math", progress)

        async def daemon(**settings):
            for number, attempt in enumerate("ab"):
                await sink.append(attempt_spans(attempt, [1, 2], time.time_ns() - 10**9 + 10 * number))
            await sink.append([reward_span(1.0, attempt="a")])
            rollbacks = RollbackRequests(wake=stored)
            builder = Builder(
                make_policy(**settings), store=store, progress=progress, rollbacks=rollbacks, stored=stored
            )
            return builder, sink, await store.ended_attempts()

        yield daemon


async def wait_for_reward(builder: Builder) -> None:
    while not builder._progress.detail.endswith("waiting for rewards of 1 attempts"):
        await asyncio.sleep(0)


async def test_a_step_does_not_wait_unless_it_is_told_to(daemon):
    builder, _, attempts = await daemon()
    build = await builder.build(attempts, 1)
    assert (build.batch, build.unscored) == (None, {"b"})


@pytest.mark.parametrize("about", [{"rollout": "r-b"}, {"response": "response-b"}])
async def test_a_late_reward_reopens_what_it_changes(daemon, about, reward_span):
    builder, sink, attempts = await daemon(reward_wait_s=600, credit={"scheme": "discounted"})
    building = asyncio.create_task(builder.build(attempts, 1))
    await wait_for_reward(builder)
    if "response" in about:  # a call's reward: then the others' calls need theirs too
        await sink.append([reward_span(0.5, response="response-a"), reward_span(0.0, rollout="r-b")])
    await sink.append([reward_span(0.0, **about)])
    build = await building
    assert build.unscored == frozenset()
    assert build.batch is not None
    expected = [1.5, 0.0] if "response" in about else [1.0, 0.0]
    assert [segment.credit for sample in build.batch.samples for segment in sample.segments] == expected


async def test_a_rollback_does_not_wait_for_rewards(daemon):
    builder, _, attempts = await daemon(reward_wait_s=600)
    building = asyncio.create_task(builder.build(attempts, 1))
    await wait_for_reward(builder)
    asked = asyncio.create_task(builder._rollbacks.ask(0))
    async with asyncio.timeout(10):
        assert await building is None
    builder._rollbacks.end()
    await asked


async def test_a_pause_does_not_wait_for_rewards_and_nothing_is_trained_after_it(daemon):
    builder, _, attempts = await daemon(reward_wait_s=600)
    building = asyncio.create_task(builder.build(attempts, 1))
    await wait_for_reward(builder)
    builder._rollbacks.paused = "looking at the data"
    builder._rollbacks.look_at_pause()
    async with asyncio.timeout(10):
        assert await building is None


async def test_a_step_that_waits_is_built_again_for_a_small_share_of_the_time(daemon, attempt_spans, monkeypatch):
    """Before, each span of any rollout had the whole step built again."""
    builder, sink, attempts = await daemon(reward_wait_s=600)
    once, took_s = builder._once, []

    async def dear(*arguments):
        began = time.monotonic()
        await asyncio.sleep(0.1)
        build = await once(*arguments)
        took_s.append(time.monotonic() - began)
        return build

    monkeypatch.setattr(builder, "_once", dear)
    building = asyncio.create_task(builder.build(attempts, 1))
    began = time.monotonic()
    for number in range(40):
        await sink.append(attempt_spans(f"live{number}", [1, 2], time.time_ns(), task="live"))
        await asyncio.sleep(0.05)
    assert len(took_s) >= 2
    assert sum(took_s) < 0.5 * (time.monotonic() - began)
    builder._rollbacks.look_again()
    assert await building is None


async def test_a_clock_that_runs_ahead_holds_nobody_up(daemon, attempt_spans, monkeypatch):
    """By the clock of its client the attempt ends in an hour."""
    builder, sink, _ = await daemon(reward_wait_s=0.05)
    await sink.append(attempt_spans("c", [1, 2], time.time_ns() + 3600 * 10**9))
    async with asyncio.timeout(60):
        build = await builder.build(await builder._store.ended_attempts(), 1)
    assert build.unscored == {"b", "c"}


async def test_what_is_dropped_while_its_reward_is_waited_for_is_neither_waited_for_nor_trained(daemon, attempt_spans):
    builder, sink, _ = await daemon(reward_wait_s=600)
    store = builder._store
    await sink.append(attempt_spans("c", [1, 2], time.time_ns() - 10**9))
    building = asyncio.create_task(builder.build(await store.ended_attempts(), 1))
    while not builder._progress.detail.endswith("waiting for rewards of 2 attempts"):
        await asyncio.sleep(0)
    await store.drop("r-b", reason="its tool was down")
    await store.drop("r-c", reason="its tool was down")
    builder._rollbacks.wake()
    async with asyncio.timeout(10):
        build = await building
    assert {row.reason for row in build.ledger} == {"dropped", "group_too_small"}
    assert build.unscored == frozenset()


async def test_a_turn_that_is_lost_and_a_step_that_is_dropped_do_not_wait_for_rewards(daemon):
    builder, _, attempts = await daemon(reward_wait_s=600)
    building = asyncio.create_task(builder.build(attempts, 1))
    await wait_for_reward(builder)
    builder._rollbacks.look_again()
    async with asyncio.timeout(10):
        assert await building is None

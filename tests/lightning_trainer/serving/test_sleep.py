"""An engine that sleeps gives nothing up: calls wait, one that dies comes back after, a new version wakes it."""

import asyncio

import pytest

from lightning_trainer.errors import EngineError
from lightning_trainer.serving.replicas import EngineReplicas
from lightning_trainer.serving.supervisor import Backoff, EngineState


@pytest.fixture
async def replicas(make_supervisor, new_plan):
    plans = [new_plan(), new_plan()]
    both = EngineReplicas([make_supervisor(plan) for plan in plans])
    await both.start()
    yield both, plans
    await both.stop()


async def test_calls_wait_while_the_engines_sleep_and_begin_when_they_wake(replicas):
    both, plans = replicas
    await both.sleep(1)
    assert [plan.engines[-1].asleep for plan in plans] == [1, 1]
    with pytest.raises(EngineError, match=r"without their GPU, which the trainer uses, for over 0.01 s"):
        await both.ready(0.01)
    waiting = asyncio.create_task(both.ready(5))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await both.wake()
    await waiting
    assert [plan.engines[-1].asleep for plan in plans] == [0, 0]
    assert both.status.sleeps == 1
    assert both.status.asleep_s > 0.05
    await both.wake()
    assert both.status.sleeps == 1


async def test_a_publication_wakes_them_first(replicas, publication):
    both, plans = replicas
    await both.sleep(2)
    assert (await both.publish(publication(1))).accepted
    assert [plan.engines[-1].asleep for plan in plans] == [0, 0]
    await both.ready(1)


async def test_a_publication_wakes_none_before_the_trainer_is_done(replicas, publication):
    both, plans = replicas
    trainer = asyncio.Lock()
    both.gpu = lambda: trainer
    await both.sleep(1)
    async with trainer:
        publishing = asyncio.create_task(both.publish(publication(1)))
        await asyncio.sleep(0.05)
        assert [plan.engines[-1].asleep for plan in plans] == [1, 1]
    assert (await publishing).accepted


async def test_one_that_dies_asleep_is_not_started_before_the_trainer_is_done(replicas, publication):
    both, (first, second) = replicas
    assert (await both.publish(publication(1))).accepted
    await both.sleep(1)
    first.engines[-1].die("out of memory")
    await asyncio.sleep(0.1)
    assert len(first.engines) == 1
    await both.wake()
    await both.replicas[0].ready(5)
    assert len(first.engines) == 2
    assert first.engines[-1].published == [1]
    assert len(second.engines) == 1


async def test_one_that_cannot_sleep_is_ended_and_one_that_cannot_wake_is_replaced(replicas):
    both, (first, second) = replicas
    first.sleepless = True
    await both.sleep(1)
    assert first.engines[0].stopped
    assert len(first.engines) == 1
    second.sleepless = True
    await both.wake()
    for one in both.replicas:
        await one.ready(5)
    assert (len(first.engines), len(second.engines)) == (2, 2)


async def test_a_waking_that_ends_in_a_bug_leaves_nobody_without_the_gpu(replicas, publication):
    both, (first, _) = replicas
    await both.sleep(1)
    first.wake_errors = [RuntimeError("a bug")]
    await both.wake()
    for one in both.replicas:
        await one.ready(1)
    assert (await both.publish(publication(1))).accepted
    assert [engine.stopped for engine in first.engines] == [True, False], "what did not wake is restarted"


async def test_one_that_starts_is_waited_for_before_it_sleeps(make_supervisor, plan):
    engine = EngineReplicas([make_supervisor(plan)])
    starting = asyncio.create_task(engine.start())
    await asyncio.wait_for(engine.sleep(1), 5)
    assert plan.engines[0].asleep == 1
    await engine.wake()
    await starting
    await engine.stop()
    assert len(plan.engines) == 1


@pytest.mark.parametrize("start_s", [0.1, 60], ids=["it gets there", "it takes too long"])
async def test_one_that_was_given_up_is_not_started_beside_the_trainer(make_supervisor, plan, start_s):
    pauses = Backoff(first_s=0.001, longest_s=0.001, attempts=1, first_rest_s=0.02, longest_rest_s=0.02)
    supervisor = make_supervisor(plan, backoff=pauses, startup_timeout_s=0.5)
    engine = EngineReplicas([supervisor])
    await engine.start()
    plan.engines[0].die("killed")
    plan.start_errors = ["out of memory"]
    while supervisor.state is not EngineState.FAILED:
        await asyncio.sleep(0.001)
    plan.start_s = start_s
    while len(plan.engines) < 3:
        await asyncio.sleep(0.001)
    await asyncio.wait_for(engine.sleep(1), 5)
    await asyncio.sleep(0.1)
    assert [one.stopped or bool(one.asleep) for one in plan.engines] == [True] * 3
    plan.start_s = 0
    await engine.wake()
    async with asyncio.timeout(5):
        while supervisor.state is not EngineState.READY:
            await asyncio.sleep(0.001)
    assert not plan.engines[-1].asleep
    await engine.stop()

"""An engine that sleeps gives nothing up: calls wait, one that dies comes back after, a new version wakes it."""

import asyncio

import pytest

from lightning_trainer.errors import EngineError
from lightning_trainer.serving.replicas import EngineReplicas


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

"""One engine is kept alive, and comes back with the weights that were live."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from lightning_trainer.errors import EngineError, PublicationError
from lightning_trainer.serving.supervisor import Backoff, EngineState, Heartbeat


@pytest.fixture
async def supervisor(make_supervisor, plan):
    supervisor = make_supervisor(plan)
    yield supervisor
    await supervisor.stop()


async def test_it_is_ready_once_started_and_says_where(supervisor, plan):
    await supervisor.start()
    assert supervisor.state is EngineState.READY
    assert supervisor.base_url == plan.engines[0].base_url
    assert supervisor.headers == plan.engines[0].headers
    assert supervisor.status.versions == {"math": 0}


async def test_a_first_start_that_fails_is_final_and_says_why(supervisor, plan):
    plan.start_errors = ["engine.max_model_len is too large"]
    with pytest.raises(EngineError, match="max_model_len is too large"):
        await supervisor.start()
    with pytest.raises(EngineError, match="max_model_len is too large"):
        await supervisor.ready(1)
    assert len(plan.engines) == 1


async def test_one_that_is_killed_while_it_starts_is_started_again(supervisor, plan):
    plan.killed_starts = 2
    await supervisor.start()
    assert supervisor.state is EngineState.READY
    assert len(plan.engines) == 3


async def test_one_that_is_killed_at_each_start_is_given_up(supervisor, plan):
    plan.killed_starts = 10
    with pytest.raises(EngineError, match="it was killed"):
        await supervisor.start()
    assert len(plan.engines) == 3


async def test_a_crashed_engine_comes_back_with_the_live_version(supervisor, plan, publication):
    await supervisor.start()
    assert (await supervisor.publish(publication(1))).accepted
    plan.engines[0].die("killed")
    while len(plan.engines) < 2:
        await asyncio.sleep(0.001)
    await supervisor.ready(1)
    assert plan.engines[0].stopped
    assert plan.engines[1].published == [1]
    assert supervisor.base_url == plan.engines[1].base_url
    assert supervisor.status.restarts == 1
    assert "killed" in (supervisor.status.last_error or "")


async def test_what_an_earlier_life_of_the_daemon_served_is_served_before_the_first_call(supervisor, plan, publication):
    supervisor.resume(publication(7))
    await supervisor.start()
    assert plan.engines[0].published == [7]
    assert supervisor.status.versions == {"math": 7}
    assert supervisor.left_out == {}


@pytest.mark.parametrize("how", ["refused", "unreadable_once"])
async def test_what_an_engine_refuses_of_an_earlier_life_leaves_version_0(supervisor, plan, publication, how: str):
    setattr(plan, how, {7})
    supervisor.resume(publication(7))
    await supervisor.start()
    assert supervisor.status.versions == {"math": 0}
    assert set(supervisor.left_out) == {"math"}


async def test_what_was_resumed_and_served_once_is_never_left_out(supervisor, plan, publication):
    supervisor.resume(publication(7))
    await supervisor.start()
    plan.refused = {7}
    plan.engines[0].die("killed")
    while "was live and cannot be served again" not in (supervisor.status.last_error or ""):
        await asyncio.sleep(0.001)
    plan.refused = set()
    await supervisor.ready(1)
    assert supervisor.status.versions == {"math": 7}


async def test_one_that_hangs_is_found_out_and_started_again(make_supervisor, plan, publication):
    supervisor = make_supervisor(plan, heartbeat=Heartbeat(every_s=0.01, patience_s=0.01, missed=3))
    await supervisor.start()
    await supervisor.publish(publication(1))
    plan.hanging = plan.engines[0]
    while len(plan.engines) < 2:
        await asyncio.sleep(0.001)
    await supervisor.ready(1)
    assert plan.engines[0].stopped
    assert plan.engines[1].published == [1]
    assert supervisor.status.last_error == (
        "the engine hangs: 3 times in a row it did not say within 0.01 s which version it serves"
    )
    await supervisor.stop()


async def test_a_start_that_takes_long_and_fails_is_no_life_that_settled(make_supervisor, plan):
    pauses = Backoff(first_s=0.001, longest_s=0.002, attempts=3, settled_s=0.02, first_rest_s=60)
    supervisor = make_supervisor(plan, backoff=pauses)
    await supervisor.start()
    plan.engines[0].die("killed")
    plan.start_errors = ["out of memory"] * 100
    plan.start_s = 0.03
    async with asyncio.timeout(2):
        while supervisor.state is not EngineState.FAILED:
            await asyncio.sleep(0.001)
    assert len(plan.engines) == 4
    await supervisor.stop()


@pytest.mark.parametrize(
    "surprise",
    [OSError(28, "No space left on device"), PublicationError("the weights cannot be read"), KeyError("a bug")],
)
async def test_whatever_a_start_ends_in_there_is_another_one(supervisor, plan, surprise):
    await supervisor.start()
    plan.surprises = [surprise, surprise]
    plan.engines[0].die("killed")
    while len(plan.engines) < 4:
        await asyncio.sleep(0.001)
    await supervisor.ready(1)
    assert supervisor.status.restarts == 3
    assert str(surprise) in (supervisor.status.last_error or "")


async def test_callers_wait_while_it_restarts(supervisor, plan):
    await supervisor.start()
    plan.engines[0].die("killed")
    while supervisor.state is EngineState.READY:
        await asyncio.sleep(0)
    with pytest.raises(EngineError, match="restarting"):
        _ = supervisor.base_url
    await supervisor.ready(1)
    assert supervisor.state is EngineState.READY


async def test_a_refused_version_is_not_published_again_after_a_restart(supervisor, plan, publication):
    await supervisor.start()
    await supervisor.publish(publication(1))
    plan.refused = {2}
    assert not (await supervisor.publish(publication(2))).accepted
    plan.engines[0].die("killed")
    while len(plan.engines) < 2:
        await asyncio.sleep(0.001)
    await supervisor.ready(1)
    assert plan.engines[1].published == [1]


async def test_a_version_that_brings_the_engine_down_is_refused_and_the_one_before_is_served(
    supervisor, plan, publication
):
    await supervisor.start()
    await supervisor.publish(publication(1))
    plan.deadly = {2}
    report = await supervisor.publish(publication(2))
    assert not report.accepted
    assert report.version == 1
    assert "2 times" in (report.reason or "")
    assert [engine.published for engine in plan.engines] == [[1], [1], [1]]


async def test_a_version_is_offered_again_when_the_engine_died_of_something_else(supervisor, plan, publication):
    await supervisor.start()
    await supervisor.publish(publication(1))
    plan.deadly_once = {2}
    report = await supervisor.publish(publication(2))
    assert report.accepted
    assert [engine.published for engine in plan.engines] == [[1], [1, 2]]
    assert supervisor.status.versions == {"math": 2}


async def test_it_goes_back_to_the_version_before_at_once(supervisor, plan, publication):
    await supervisor.start()
    for version in (1, 2):
        await supervisor.publish(publication(version))
    await supervisor.restore("math", publication(1))
    assert [engine.published for engine in plan.engines] == [[1, 2, 1]]
    assert supervisor.status.versions == {"math": 1}


async def test_it_goes_back_to_version_0_and_to_what_the_engine_does_not_take_by_a_new_start(
    supervisor, plan, publication
):
    await supervisor.start()
    await supervisor.publish(publication(1))
    await supervisor.restore("math", None)
    assert [engine.published for engine in plan.engines] == [[1], []]
    assert supervisor.status.versions == {"math": 0}
    await supervisor.publish(publication(2))
    plan.deadly_once = {1}
    await supervisor.restore("math", publication(1))
    assert [engine.published for engine in plan.engines] == [[1], [2], [1]]
    assert supervisor.status.versions == {"math": 1}
    await supervisor.publish(publication(3))
    plan.unreadable_once = {1}
    await supervisor.restore("math", publication(1))
    assert [engine.published for engine in plan.engines] == [[1], [2], [1, 3], [1]]
    assert supervisor.status.versions == {"math": 1}


async def test_an_engine_that_keeps_dying_is_given_up_with_its_reason(supervisor, plan, backoff):
    await supervisor.start()
    plan.start_errors = ["out of memory"] * 10
    plan.engines[0].die("killed")
    while supervisor.state is not EngineState.FAILED:
        await asyncio.sleep(0.001)
    with pytest.raises(EngineError, match="out of memory"):
        await supervisor.ready(1)
    assert len(plan.engines) == 1 + backoff.attempts


async def test_one_that_was_given_up_is_tried_again_until_it_comes_back(make_supervisor, plan, publication):
    pauses = Backoff(first_s=0.001, longest_s=0.001, attempts=2, first_rest_s=0.05, longest_rest_s=0.1)
    supervisor = make_supervisor(plan, backoff=pauses)
    await supervisor.start()
    await supervisor.publish(publication(1))
    plan.start_errors = ["out of memory"] * 5
    plan.engines[0].die("killed")
    while supervisor.state is not EngineState.FAILED:
        await asyncio.sleep(0.001)
    assert supervisor.status.retry_at is not None
    with pytest.raises(EngineError, match="out of memory"):
        await supervisor.ready(5)
    async with asyncio.timeout(10):
        while supervisor.state is not EngineState.READY:
            assert supervisor.state is EngineState.FAILED, "nobody waits for it while it is only tried"
            await asyncio.sleep(0.001)
    assert plan.engines[-1].published == [1]
    assert (supervisor.status.retry_at, supervisor.status.versions) == (None, {"math": 1})
    await supervisor.stop()


def test_the_pauses_grow_to_a_bound():
    pauses = Backoff()
    assert [pauses.delay_s(failures) for failures in (1, 5, 6, 7, 9, 10, 1000)] == [1, 16, 60, 120, 480, 600, 600]


async def test_ready_gives_up_after_its_timeout(supervisor):
    with pytest.raises(EngineError, match="has been stopped for over"):
        await supervisor.ready(0.01)


async def test_stopping_ends_the_process_and_can_be_repeated(supervisor, plan):
    await supervisor.start()
    await supervisor.stop()
    await supervisor.stop()
    assert plan.engines[0].stopped
    assert supervisor.state is EngineState.STOPPED


async def test_each_policys_own_version_comes_back(make_supervisor, plan, publication):
    supervisor = make_supervisor(plan, policies=("math", "chat"), lora_rank=8)
    await supervisor.start()
    assert supervisor.status.versions == {"math": 0, "chat": 0}
    await supervisor.publish(publication(3))
    other = replace(publication(5), policy="chat")
    await supervisor.publish(other)
    assert supervisor.status.versions == {"math": 3, "chat": 5}
    assert {name: live.version for name, live in supervisor.live.items()} == {"math": 3, "chat": 5}
    assert all(Path(live.path).exists() for live in supervisor.live.values())
    plan.engines[0].die("killed")
    while len(plan.engines) < 2 or supervisor.state is not EngineState.READY:
        await asyncio.sleep(0.01)
    assert plan.engines[1].published == [3, 5]
    assert supervisor.status.versions == {"math": 3, "chat": 5}
    await supervisor.stop()

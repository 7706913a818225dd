"""The readers-writer lock: one version samples all tokens of a response, and a publication is never starved."""

import asyncio
import random

import pytest

from lightning_trainer.serving.host.weights.rw_lock import DrainTimeout, RwLock


async def never_aborted() -> None:
    raise AssertionError("nothing was to be aborted")


async def test_requests_go_through_together():
    rw_lock = RwLock()
    async with rw_lock.reading(), rw_lock.reading():
        assert rw_lock.running == 2
    assert rw_lock.running == 0


async def test_a_response_never_spans_two_versions():
    rw_lock, version, random_ = RwLock(), 0, random.Random(3)

    async def request() -> None:
        await asyncio.sleep(random_.random() / 50)
        async with rw_lock.reading():
            before = version
            for _ in range(5):
                await asyncio.sleep(random_.random() / 500)
                assert version == before

    async def publications() -> None:
        nonlocal version
        for _ in range(10):
            async with rw_lock.writing(5, never_aborted):
                assert rw_lock.running == 0
                version += 1
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.002)

    await asyncio.gather(publications(), *(request() for _ in range(200)))
    assert version == 10


async def test_a_publication_is_not_starved_by_a_stream_of_requests():
    rw_lock, done = RwLock(), asyncio.Event()

    async def stream_of_requests() -> None:
        while not done.is_set():
            async with rw_lock.reading():
                await asyncio.sleep(0.005)

    requests = [asyncio.create_task(stream_of_requests()) for _ in range(8)]
    await asyncio.sleep(0.02)
    async with asyncio.timeout(1), rw_lock.writing(5, never_aborted):
        pass
    done.set()
    await asyncio.gather(*requests)


async def test_requests_that_come_during_a_publication_wait_for_it():
    rw_lock, order = RwLock(), []

    async def request() -> None:
        async with rw_lock.reading():
            order.append("request")

    async with rw_lock.writing(5, never_aborted):
        waiting = asyncio.create_task(request())
        await asyncio.sleep(0.01)
        order.append("published")
    await waiting
    assert order == ["published", "request"]


async def test_requests_that_outlast_the_drain_are_aborted_and_still_waited_for():
    rw_lock, cut = RwLock(), asyncio.Event()

    async def endless() -> None:
        async with rw_lock.reading():
            await cut.wait()

    async def abort() -> None:
        cut.set()

    running = asyncio.create_task(endless())
    await asyncio.sleep(0)
    async with rw_lock.writing(0.02, abort):
        assert rw_lock.running == 0
    await running


async def test_a_request_that_survives_the_abort_stops_the_publication_not_the_lock():
    rw_lock, end = RwLock(abort_timeout_s=0.01), asyncio.Event()

    async def deaf() -> None:
        async with rw_lock.reading():
            await end.wait()

    async def abort() -> None:
        pass

    running = asyncio.create_task(deaf())
    await asyncio.sleep(0)
    with pytest.raises(DrainTimeout, match="1 requests did not end"):
        async with rw_lock.writing(0.01, abort):
            pytest.fail("a request is still running")
    async with asyncio.timeout(1), rw_lock.reading():
        pass
    end.set()
    await running


async def test_a_request_that_is_cancelled_leaves_the_lock():
    rw_lock = RwLock()

    async def request() -> None:
        async with rw_lock.reading():
            await asyncio.sleep(60)

    running = asyncio.create_task(request())
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    async with asyncio.timeout(1), rw_lock.writing(1, never_aborted):
        assert rw_lock.running == 0


@pytest.mark.long
async def test_a_request_that_reached_the_engine_after_the_abort_is_aborted_too():
    rw_lock, cut, aborts = RwLock(), asyncio.Event(), 0

    async def late() -> None:
        async with rw_lock.reading():
            await cut.wait()

    async def abort() -> None:
        nonlocal aborts
        aborts += 1
        if aborts == 2:  # the first one came before the engine knew the request
            cut.set()

    running = asyncio.create_task(late())
    await asyncio.sleep(0)
    async with rw_lock.writing(3, abort):
        assert rw_lock.running == 0
    await running

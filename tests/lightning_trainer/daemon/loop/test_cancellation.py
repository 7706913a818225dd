"""A daemon that is told to stop stops, also in the very moment in which spans arrive."""

import asyncio

from lightning_trainer.store.sqlite import SqliteStore


async def test_a_loop_that_is_cancelled_as_spans_arrive_ends(tmp_path, make_policy, collecting_loop):
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        loop = collecting_loop(store, make_policy())
        collecting = asyncio.create_task(loop.steps.next_attempts(1))
        await asyncio.sleep(0.3)  # it has looked into the empty store and waits
        loop.steps._stored.set()
        collecting.cancel()
        _, going_on = await asyncio.wait([collecting], timeout=5)
        collecting.cancel()
        await asyncio.wait([collecting])
    assert not going_on

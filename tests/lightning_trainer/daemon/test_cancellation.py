"""A daemon that is told to stop stops, also in the very moment in which spans arrive."""

import asyncio
from typing import Any

from lightning_trainer.config import PolicyConfig
from lightning_trainer.daemon.checkpoints import CheckpointFolder
from lightning_trainer.daemon.progress import Progress
from lightning_trainer.daemon.rollback import RollbackRequests
from lightning_trainer.daemon.training_loop import TrainingLoop
from lightning_trainer.store.sqlite import SqliteStore


async def test_a_loop_that_is_cancelled_as_spans_arrive_ends(tmp_path):
    unused: Any = None
    stored = asyncio.Event()
    policy = PolicyConfig.model_validate({"name": "p", "agents": ["*"], "model": "random:tiny"})
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        loop = TrainingLoop(
            policy,
            store=store,
            trainer=unused,
            publisher=unused,
            checkpoints=CheckpointFolder(tmp_path / "checkpoints", keep=1),
            progress=Progress(),
            metrics=unused,
            rollbacks=RollbackRequests(wake=asyncio.Event()),
            stored=stored,
        )
        collecting = asyncio.create_task(loop._next_attempts(1))
        await asyncio.sleep(0.3)  # it has looked into the empty store and waits
        stored.set()
        collecting.cancel()
        _, going_on = await asyncio.wait([collecting], timeout=5)
        collecting.cancel()
        await asyncio.wait([collecting])
    assert not going_on

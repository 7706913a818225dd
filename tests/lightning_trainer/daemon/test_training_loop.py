"""What the loop decides by itself; its work with a real trainer and engine is tested in tests/loop."""

import asyncio
from pathlib import Path
from typing import Any

from lightning_trainer.config import PolicyConfig
from lightning_trainer.daemon.checkpoints import CheckpointFolder
from lightning_trainer.daemon.progress import Phase, Progress
from lightning_trainer.daemon.training_loop import TrainingLoop
from lightning_trainer.store.sqlite import SqliteStore


class RecordingPublisher:
    refused_in_a_row = 0
    last_reason = None

    def __init__(self) -> None:
        self.versions: list[int] = []

    async def publish(self, *, version: int, step: int) -> None:
        self.versions.append(version)


async def test_a_policy_that_is_not_trained_is_served_and_never_collects(tmp_path: Path):
    progress = Progress()
    publisher: Any = RecordingPublisher()
    trainer: Any = None  # any use of it is an error
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        loop = TrainingLoop(
            PolicyConfig(name="frozen", agents=("a",), model="random:tiny", train=False),
            store=store,
            trainer=trainer,
            publisher=publisher,
            checkpoints=CheckpointFolder(tmp_path / "checkpoints", keep=1),
            progress=progress,
            stored=asyncio.Event(),
        )
        async with asyncio.timeout(10):
            await loop.run()

    assert publisher.versions == [0]
    assert progress.phase is Phase.SERVING
    async with asyncio.timeout(10):
        await progress.wait_for_step(1, timeout_s=60)  # nobody waits for a step that will not come

"""Fixtures of the daemon's tests."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from lightning_trainer.config import PolicyConfig
from lightning_trainer.daemon.api.rollback import RollbackRequests
from lightning_trainer.daemon.loop.context import LoopContext
from lightning_trainer.daemon.loop.training_loop import TrainingLoop
from lightning_trainer.daemon.watching.progress import Progress
from lightning_trainer.store import SqliteStore


@pytest.fixture
def collecting_loop() -> Callable[[SqliteStore, PolicyConfig], TrainingLoop]:
    """Makes a loop that can collect attempts and nothing else: it has no trainer and no engine."""
    nothing: Any = None

    def make(store: SqliteStore, policy: PolicyConfig) -> TrainingLoop:
        return TrainingLoop(
            LoopContext(
                policy=policy,
                store=store,
                progress=Progress(),
                metrics=nothing,
                rollbacks=RollbackRequests(wake=asyncio.Event()),
                stored=asyncio.Event(),
            ),
            trainer=nothing,
            publisher=nothing,
            checkpoints=nothing,
        )

    return make

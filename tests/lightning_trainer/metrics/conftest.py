"""Stores with steps that have ended, as the training loop writes them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from lightning_trainer.store.records import StepState
from lightning_trainer.store.sqlite import SqliteStore
from lightning_trainer.types import StepReport, TrainingBatch


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with SqliteStore(tmp_path / "lightning.sqlite") as opened:
        yield opened


@pytest.fixture
def end_step(store: SqliteStore) -> Callable[..., Awaitable[None]]:
    """``end_step(step, reward, **metrics)``: a step of policy ``p`` without samples, trained."""

    async def end(step: int, reward: float, **metrics: float) -> None:
        assigned = {"reward/mean": reward}
        batch = TrainingBatch("p", step, ())
        await store.assign(batch, policy="p", step=step, attempt_ids=[], ledger=[], metrics=assigned)
        await store.finish_step("p", StepReport(step, metrics, {}, 1, 1, 1, {}), StepState.TRAINED)

    return end

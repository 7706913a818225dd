"""Whatever carries a checkpoint's final name is whole; the rest is swept away."""

import shutil
from functools import partial

from lightning_trainer.config.store import StoreConfig
from lightning_trainer.daemon.loop.checkpoints import CheckpointFolder, repeatable_from
from lightning_trainer.store.records import StepState
from lightning_trainer.store.sqlite import SqliteStore
from lightning_trainer.types import StepReport, TrainingBatch


def test_the_newest_whole_checkpoint_counts_and_interrupted_ones_do_not(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=2)
    for name in ("step-00000002", "step-00000010", "step-00000005", "step-00000011.tmp"):
        (tmp_path / name).mkdir()

    assert folder.steps() == [2, 5, 10]
    assert folder.latest(range(20)) == 10

    folder.prune(range(20))

    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["step-00000005", "step-00000010"]


def test_a_policy_without_checkpoints_has_none(tmp_path):
    assert CheckpointFolder(tmp_path / "absent", keep=1).latest([0, 1]) is None
    CheckpointFolder(tmp_path / "absent", keep=1).prune([0, 1])


def test_checkpoints_of_steps_that_were_rolled_back_are_not_gone_on_from(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=1)
    for step in (2, 4, 6):
        folder.path(step).mkdir()

    assert folder.latest((0, 1, 2, 3, 4, 7)) == 4

    folder.prune((0, 1, 2, 3, 4, 7))

    assert folder.steps() == [4]


async def record_step(store: SqliteStore, step: int) -> None:
    await store.assign(TrainingBatch("p", step, ()), policy="p", step=step, attempt_ids=[], ledger=[])
    await store.finish_step("p", StepReport(step, {}, {}, 1, 1, 1, {}), StepState.TRAINED)


async def test_what_a_recorded_rollback_still_has_to_repeat_is_not_deleted(tmp_path):
    """Before: the checkpoints that it leaves behind counted, and the batches before them were deleted."""
    root = tmp_path / "checkpoints"
    folder = CheckpointFolder(root / "p", keep=2)
    for step in (8, 10):
        folder.path(step).mkdir(parents=True)
    async with SqliteStore(tmp_path / "s.sqlite", StoreConfig(retention_steps=1)) as store:
        store.retention.wanted_by = lambda: ["p"]
        store.retention.repeatable_from = partial(repeatable_from, root)

        async def gone() -> list[int]:
            store.retention.begin_sweep()
            while await store.sweep():
                pass
            return await store.without_batch("p", range(1, 20))

        for step in range(1, 11):
            await record_step(store, step)
        await store.put_rollback("p", 3, at_ns=1)
        assert await gone() == []  # recovering takes as long as the steps took
        folder.path(2).mkdir()
        assert await gone() == [1, 2]
        shutil.rmtree(folder.path(2))
        folder.prune((0, 1, 2, 3))  # it was recovered to, and nothing was saved since
        assert await gone() == [1, 2]
        for step in (11, 12, 13):
            await record_step(store, step)
        folder.path(12).mkdir()
        assert await gone() == list(range(1, 13))

"""A rollback is recorded when there is a way back, and refused in a sentence when there is none."""

from pathlib import Path

import pytest

from lightning_trainer.errors import RollbackError
from lightning_trainer.store.records import StepState
from lightning_trainer.store.sqlite import SqliteStore
from lightning_trainer.types import PolicyVersion, TrainingBatch, VersionState
from lightning_trainer.versions.listing import list_versions
from lightning_trainer.versions.rollback import read_lineage, record_rollback


@pytest.fixture
async def store(tmp_path: Path):
    """Policy ``math`` after steps 1 to 4, of which 3 trained nothing and 4 was refused by the engine."""
    async with SqliteStore(tmp_path / "lightning.sqlite") as opened:
        await opened.put_version(PolicyVersion("math", 0, 0, VersionState.LIVE, 100))
        for step in (1, 2, 3, 4):
            skipped = step == 3
            await opened.assign(
                None if skipped else TrainingBatch("math", step, ()),
                policy="math",
                step=step,
                attempt_ids=[],
                ledger=[],
                state=StepState.SKIPPED if skipped else StepState.ASSIGNED,
                metrics={"reward/mean": step / 10},
            )
            if not skipped:
                state = VersionState.REFUSED if step == 4 else VersionState.LIVE
                await opened.put_version(PolicyVersion("math", step, step, state, 100 + step, reason=None))
        yield opened


async def test_the_next_step_goes_on_from_the_version_that_was_gone_back_to(store):
    await record_rollback(store, "math", 1)
    assert (await read_lineage(store, "math")).path() == (0, 1)
    (rollback,) = await store.rollbacks("math")
    assert (rollback.after_step, rollback.version) == (4, 1)


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        (3, "policy 'math' has no version 3; it has 0 to 4"),
        (9, "policy 'math' has no version 9"),
        (4, "math@v4 is refused and was never served; `lightning-trainer promote 4`"),
    ],
)
async def test_where_there_is_no_way_back_nothing_is_recorded(store, version, sentence):
    with pytest.raises(RollbackError, match=sentence):
        await record_rollback(store, "math", version)
    assert await store.rollbacks("math") == []


async def test_going_back_to_where_training_is_already_is_refused(store):
    await record_rollback(store, "math", 2)
    with pytest.raises(RollbackError, match="math@v2 is what training goes on from already"):
        await record_rollback(store, "math", 2)


async def test_the_list_says_where_each_version_is_and_what_it_earned(store, make_policy):
    await record_rollback(store, "math", 1)
    rows = await store.scan(lambda connection: list_versions(connection, make_policy(), stored=[1, 2]))
    assert [(row["version"], row["parent"], row["state"], row["reward"]) for row in rows] == [
        (0, None, "gone", 0.1),
        (1, 0, "stored", 0.2),
        (2, 1, "serving", 0.4),
        (4, 2, "refused", None),
    ]


async def test_a_version_keeps_the_time_when_it_was_made(store):
    await store.put_version(PolicyVersion("math", 1, 1, VersionState.LIVE, 999))
    assert [version.created_ns for version in await store.versions("math")][:2] == [100, 101]

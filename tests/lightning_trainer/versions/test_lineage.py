"""Repeating a path's steps gives the weights that the run had, whatever was rolled back to in between."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_trainer.store import SqliteStore
from lightning_trainer.store.records import Rollback
from lightning_trainer.store.worklist.forgetting import TrainedStep
from lightning_trainer.types import PolicyVersion, StepReport, TrainingBatch, VersionState
from lightning_trainer.versions.lineage import Lineage, made_with
from lightning_trainer.versions.rollback import record_rollback


def test_without_rollbacks_every_step_follows_the_one_before():
    lineage = Lineage([1, 2, 4])
    assert lineage.path() == (0, 1, 2, 4)
    assert lineage.parent(4) == 2
    assert 3 not in lineage


def test_a_rollback_leaves_a_branch_behind_that_can_be_gone_back_to():
    """1-2-3-4, back to 2, 5-6, back to 4: the next step goes on from 4."""
    lineage = Lineage([1, 2, 3, 4, 5, 6], [Rollback(4, 2, 0), Rollback(6, 4, 0)])
    assert lineage.path(6) == (0, 1, 2, 5, 6)
    assert lineage.path() == (0, 1, 2, 3, 4)
    assert lineage.head == 4


def test_of_two_rollbacks_without_a_step_between_the_later_counts():
    lineage = Lineage([1, 2, 3], [Rollback(3, 1, 0), Rollback(3, 2, 0)])
    assert lineage.path() == (0, 1, 2)


@pytest.mark.parametrize(
    ("states", "before"),
    [
        ((VersionState.LIVE, VersionState.RETIRED, VersionState.REFUSED, VersionState.LIVE), 1),
        ((VersionState.LIVE, VersionState.RETIRED, VersionState.RETIRED, VersionState.LIVE), 2),
        ((VersionState.LIVE, VersionState.REFUSED, VersionState.TRAINED, VersionState.LIVE), 0),
    ],
)
async def test_the_version_before_data_was_trained_is_one_that_rollback_takes(tmp_path, states, before):
    """Before: the parent, also if it was refused, and so does rollback refuse it."""
    async with SqliteStore(tmp_path / "s.sqlite") as store:
        for number, state in enumerate(states):
            reason = "its canary is undecided" if state is VersionState.REFUSED else None
            await store.put_version(PolicyVersion("math", number, number, state, 1, reason=reason))
            if number:
                batch = TrainingBatch("math", number, ())
                await store.assign(batch, policy="math", step=number, attempt_ids=[], ledger=[])
                await store.finish_step("math", StepReport(number, {}, {}, 1, 1, 1, {}))
        (made,) = await store.scan(lambda c: made_with(c, [TrainedStep("math", 3, "trained", 1)]))
        assert (made.versions, made.before) == ((3,), before)
        assert f"rollback math@v{before}`" in made.sentence
        assert (await record_rollback(store, "math", made.before, checkpoints=[1, 2, 3])).version == before


@given(st.lists(st.one_of(st.none(), st.integers(0, 30)), max_size=40))
def test_a_path_is_what_a_trainer_did_that_really_went_back(events):
    """None is a step; a number asks for a rollback to the version of that index, as far as there are so many."""
    now: tuple[int, ...] = (0,)
    trained_of: dict[int, tuple[int, ...]] = {0: now}
    steps: list[int] = []
    rollbacks: list[Rollback] = []
    for event in events:
        if event is None:
            step = len(steps) + 1
            steps.append(step)
            now = (*now, step)
            trained_of[step] = now
        else:
            version = event % (len(steps) + 1)
            rollbacks.append(Rollback(len(steps), version, 0))
            now = trained_of[version]
    lineage = Lineage(steps, rollbacks)
    assert lineage.path() == now
    assert all(lineage.path(version) == path for version, path in trained_of.items())

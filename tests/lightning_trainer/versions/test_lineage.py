"""Repeating a path's steps gives the weights that the run had, whatever was rolled back to in between."""

from hypothesis import given
from hypothesis import strategies as st

from lightning_trainer.store.records import Rollback
from lightning_trainer.versions.lineage import Lineage


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

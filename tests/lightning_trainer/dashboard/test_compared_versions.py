"""Two versions are compared by each task's mean reward, however often it was tried."""

import pytest

from lightning_trainer.dashboard.reading.history import TaskScores, compare_versions
from lightning_trainer.report import MeanDifference, PairedDifference
from lightning_trainer.store import SqliteStore


@pytest.fixture
async def compared(tmp_path, make_policy):
    """``await compared(before, after)``: rewards by task of the attempts that each version was evaluated by."""
    policy = make_policy()
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:

        async def compare(before, after):
            tried = [
                (f"{version}-{task}-{number}", task, version, reward)
                for version, of in ((0, before), (5, after))
                for task, rewards in of.items()
                for number, reward in enumerate(rewards)
            ]

            def fill(connection):
                for name, task, version, reward in tried:
                    connection.execute(
                        "INSERT INTO attempts (attempt_id, rollout_id, task_id, state, started_ns) "
                        "VALUES (?, ?, ?, 'succeeded', 0)",
                        (name, name, task),
                    )
                    connection.execute("INSERT INTO verdicts VALUES (?, ?, ?, ?)", (policy.name, name, version, reward))

            await store.write(fill)
            return await store.scan(lambda connection: compare_versions(connection, policy, 0, 5, unread=False))

        yield compare


async def test_tasks_that_were_tried_once_and_passed_or_not_are_compared_exactly(compared):
    _, change = await compared({"a": [0], "b": [0], "c": [1]}, {"a": [1], "b": [0], "c": [1], "only after": [1]})
    assert isinstance(change, PairedDifference)
    assert (change.n, change.gained, change.lost) == (3, 1, 0)


async def test_a_task_that_an_interrupted_evaluation_tried_as_well_counts_once(compared):
    # Before: it was left out, so that only tasks which had not ended by the interruption remained.
    scores, change = await compared(
        {"a": [0, 0], "b": [0, 1], "c": [0], "d": [1]}, {"a": [1], "b": [1], "c": [0], "d": [0]}
    )
    assert scores[1] == TaskScores("b", 0.5, 1.0, (2, 1))
    assert isinstance(change, MeanDifference)
    assert (change.n, change.difference) == (4, 0.125)


async def test_partial_credit_has_an_interval_as_well(compared):
    _, change = await compared({"a": [0.25], "b": [0], "c": [1], "d": [0]}, {"a": [0.5], "b": [1], "c": [1], "d": [0]})
    assert isinstance(change, MeanDifference)
    assert change.difference == 0.3125


async def test_a_single_task_has_no_interval(compared):
    scores, change = await compared({"a": [0]}, {"a": [1]})
    assert (len(scores), change) == (1, None)

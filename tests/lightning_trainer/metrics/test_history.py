"""What a rollback took back is neither wrong nor better, whoever recorded it and when."""

import json

from hypothesis import given
from hypothesis import strategies as st

from lightning_trainer.metrics.history import on_path, select_history
from lightning_trainer.metrics.recorder import MetricsRecorder
from lightning_trainer.metrics.row import StepMetrics
from lightning_trainer.store.records import Rollback, StepState
from lightning_trainer.versions.lineage import Lineage

RISE, FALL = [step / 20 for step in range(1, 21)], [0.2] * 5


def rows(*steps: int) -> list[StepMetrics]:
    return [StepMetrics("p", step, {}) for step in steps]


def test_a_step_that_trained_nothing_belongs_to_the_version_before_it():
    """Versions 1, 2, 4; 3 and 5 were skipped; back to 2; 6 was skipped."""
    left = on_path(rows(1, 2, 3, 4, 5, 6), [Rollback(5, 2, 0)])
    assert [row.step for row in left] == [1, 2, 6]
    assert [row.step for row in on_path(rows(1, 2, 3, 4, 5), [])] == [1, 2, 3, 4, 5]


@given(st.lists(st.integers(0, 30), max_size=30))
def test_the_path_is_that_of_the_lineage(choices):
    """A choice of 10 or more is a step, and a smaller one a rollback to one of the versions so far."""
    steps, rollbacks = [], []
    for choice in choices:
        if choice >= 10:
            steps.append(len(steps) + 1)
        else:
            rollbacks.append(Rollback(len(steps), choice % (len(steps) + 1), 0))
    left = [row.step for row in on_path(rows(*steps), rollbacks)]
    assert (0, *left) == Lineage(steps, rollbacks).path()


async def test_no_warning_is_about_steps_that_a_rollback_took_back(store, end_step, tmp_path):
    recorder = MetricsRecorder("p", store, folder=tmp_path)
    for step, reward in enumerate([*RISE, *FALL], start=1):
        await end_step(step, reward)
        await recorder.step_ended(step)
    assert "reward_fall" in recorder.warnings

    await store.put_rollback("p", 20, at_ns=1)
    await recorder.look_back()
    assert recorder.warnings == {}
    await end_step(26, 1.0)
    await recorder.step_ended(26)
    await recorder.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics" / "p.jsonl").read_text().splitlines()]
    assert (list(lines[24]["warnings"]), lines[25]["warnings"]) == (["reward_fall"], {})


async def test_the_reward_that_was_left_on_purpose_is_no_peak(store, end_step, tmp_path):
    """From 13 on the policy hacked its reward; the daemon was stopped, and goes on from 12."""
    for step, reward in enumerate([*[0.3] * 12, *[0.9] * 8], start=1):
        await end_step(step, reward)
    await store.put_rollback("p", 12, at_ns=1)
    for step in range(21, 29):
        await end_step(step, 0.3)
    recorder = MetricsRecorder("p", store, folder=tmp_path)
    await recorder.start(lambda sentence: None)
    await recorder.close()
    assert recorder.warnings == {}
    assert [row.step for row in recorder.rows] == list(range(1, 29))


async def test_a_stopped_run_has_the_history_that_its_daemon_had(store, end_step):
    for step in range(1, 5):
        await end_step(step, 0.5)
    await store.put_rollback("p", 3, at_ns=1)
    await store.assign(None, policy="p", step=5, attempt_ids=[], ledger=(), state=StepState.SKIPPED, metrics={})
    found = await store.scan(lambda connection: select_history(connection, "p"))
    assert [row.step for row in found] == [1, 2, 3, 5]

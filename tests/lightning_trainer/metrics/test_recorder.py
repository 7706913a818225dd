"""Every step's row reaches every sink once, whatever was killed in between, and no sink can stop the run."""

import json
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_trainer.config.metrics import MetricsConfig
from lightning_trainer.metrics.recorder import MetricsRecorder


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics" / "p.jsonl").read_text().splitlines()]


async def test_what_a_crash_kept_from_the_file_is_written_at_the_next_start(store, end_step, tmp_path):
    await end_step(1, 0.5)
    recorder = MetricsRecorder("p", store, folder=tmp_path)
    await recorder.step_ended(1)
    await recorder.step_ended(1)
    await recorder.close()
    with (tmp_path / "metrics" / "p.jsonl").open("a") as file:
        file.write('{"policy": "p", "step": 2, "rew')
    await end_step(2, 0.6)
    await end_step(3, 0.7)

    again = MetricsRecorder("p", store, folder=tmp_path)
    await again.start(lambda sentence: None)
    await again.close()

    assert [(line["step"], line["reward/mean"]) for line in lines(tmp_path)] == [(1, 0.5), (2, 0.6), (3, 0.7)]
    assert [row.step for row in again.rows] == [1, 2, 3]


async def test_the_rows_of_steps_that_another_daemon_trained_are_written_before_the_next_ones(
    store, end_step, tmp_path
):
    for step in (1, 2, 3, 4):
        await end_step(step, step / 10)
    recorder = MetricsRecorder("p", store, folder=tmp_path)
    await recorder.step_ended(1)
    await recorder.step_ended(3)  # the fourth is being published
    assert [row.step for row in recorder.rows] == [1, 2, 3]
    await recorder.step_ended(4)
    await recorder.close()
    assert [(line["step"], line["reward/mean"]) for line in lines(tmp_path)] == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]


async def test_a_warning_is_logged_when_it_begins_and_is_in_the_row(store, end_step, tmp_path, caplog):
    recorder = MetricsRecorder("p", store, folder=tmp_path)
    for step, kl in enumerate((0.01, 0.5, 0.6, 0.02), start=1):
        await end_step(step, 0.5, **{"actor/ppo_kl": kl})
        await recorder.step_ended(step)
    await recorder.close()

    assert [list(line["warnings"]) for line in lines(tmp_path)] == [[], ["kl_blowup"], ["kl_blowup"], []]
    assert sum("KL blow-up" in record.message for record in caplog.records) == 1
    assert recorder.warnings == {}


async def test_a_sink_that_fails_is_left_out_and_the_others_go_on(store, end_step, tmp_path, caplog, monkeypatch):
    class Broken:
        def write(self, row, warnings):
            raise OSError("no space left on device")

        def close(self):
            raise AssertionError("it was left out")

    recorder = MetricsRecorder("p", store, folder=tmp_path, config=MetricsConfig(tensorboard=False))
    monkeypatch.setattr("lightning_trainer.metrics.recorder._open_sinks", lambda *_: [Broken()])
    await recorder.start(lambda sentence: None)
    for step in (1, 2):
        await end_step(step, 0.5)
        await recorder.step_ended(step)
    await recorder.close()

    assert [line["step"] for line in lines(tmp_path)] == [1, 2]
    assert sum("no space left" in record.message for record in caplog.records) == 1


async def test_tensorboard_gets_every_number_and_the_warnings(store, end_step, tmp_path):
    recorder = MetricsRecorder("p", store, folder=tmp_path, config=MetricsConfig(tensorboard=True))
    await recorder.start(lambda sentence: None)
    for step, kl in ((1, 0.25), (2, 0.5)):
        await end_step(step, 0.75, **{"actor/ppo_kl": kl})
        await recorder.step_ended(step)
    await recorder.close()

    events = EventAccumulator(str(tmp_path / "metrics" / "tensorboard" / "p"))
    events.Reload()
    assert set(events.Tags()["tensors"]) == {*recorder.rows[0].values, "warnings/kl_blowup"}
    assert [(event.step, event.tensor_proto.float_val[0]) for event in events.Tensors("actor/ppo_kl")] == [
        (1, 0.25),
        (2, 0.5),
    ]

"""The trainer behind its client: in this process, and in a Ray actor that may die and is replaced."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from lightning_trainer.config.policies.updates import LoraConfig
from lightning_trainer.errors import TrainerDiedError, TrainingError
from lightning_trainer.training.on_ray.hang_detection import Stillness
from lightning_trainer.training.remote import make_trainer, make_trainers
from lightning_trainer.types import TrainingBatch

pytestmark = pytest.mark.verl


@pytest.fixture
def batch(samples_of_shape):
    return lambda step: TrainingBatch(policy="tiny", step=step, samples=tuple(samples_of_shape(step, "duplicates")))


async def _checksum(client, folder: Path, version: int) -> str:
    return (await client.publish(folder / f"weights-{version}", version)).checksum


async def test_in_process_errors_are_sentences_and_a_restart_starts_anew(settings, batch, tmp_path):
    client = make_trainer("inprocess", settings())
    with pytest.raises(TrainingError, match="not running"):
        await client.score([[1, 2]])
    await client.start()
    fresh = await client.score([[1, 2, 3]])
    await client.step(batch(1))
    assert await client.score([[1, 2, 3]]) != fresh
    with pytest.raises(TrainingError, match="step 1 is done already"):
        await client.step(batch(1))
    with pytest.raises(TrainingError, match=r"the trainer failed: IndexError"):
        await client.score([[1, 100_000]])
    await client.restart()
    assert await client.score([[1, 2, 3]]) == fresh
    await client.close()
    await client.close()
    with pytest.raises(TrainingError, match="not running"):
        await client.score([[1, 2]])


async def test_several_trainers_of_one_process_start_at_once_and_give_stdout_back(settings, batch):
    """Models are made by functions of torch that are replaced meanwhile: two at a time took each other's."""
    stdout = sys.stdout
    for _ in range(3):
        clients = make_trainers("inprocess", [settings(), settings(), settings(lora=LoraConfig(rank=2))], at_once=1)
        await asyncio.gather(*(client.start() for client in clients))
        assert sys.stdout is stdout
        reports = await asyncio.gather(*(client.step(batch(1)) for client in clients))
        assert reports[0].metrics == reports[1].metrics
        for client in clients:
            await client.close()


async def test_what_a_step_draws_at_random_does_not_depend_on_other_trainers_of_the_process(settings, batch):
    drawn = {"policy_loss": "clip_cov", "clip_cov_ratio": 0.3, "clip_cov_lb": -10.0, "clip_cov_ub": 10.0}
    alone = make_trainer("inprocess", settings(**drawn))
    await alone.start()
    expected = [(await alone.step(batch(step))).metrics for step in (1, 2)]
    await alone.close()
    pair = make_trainers("inprocess", [settings(**drawn), settings(**drawn)])
    await asyncio.gather(*(client.start() for client in pair))
    found = []
    for step in (1, 2):
        found += [(await pair[0].step(batch(step))).metrics, (await pair[1].step(batch(step))).metrics]
    for client in pair:
        await client.close()
    assert found == [expected[0], expected[0], expected[1], expected[1]]


@pytest.mark.slow
@pytest.mark.ray
async def test_an_actor_that_is_killed_is_replaced_and_one_that_is_stopped_goes_on_to_the_same_weights(
    settings, batch, tmp_path
):
    whole = make_trainer("inprocess", settings())
    await whole.start()
    await whole.step(batch(1))
    await whole.step(batch(2))
    expected = await _checksum(whole, tmp_path, 2)
    await whole.close()

    before = {process.pid for process in psutil.Process().children(recursive=True)}
    client = make_trainer("ray", settings(log_dir=tmp_path / "logs"))
    try:
        await client.start()
        await client.step(batch(1))
        await client.save(tmp_path / "step-1", 1)
        with pytest.raises(TrainingError, match="step 1 is done already"):
            await client.step(batch(1))

        assert client.process_id is not None
        os.kill(client.process_id, signal.SIGKILL)
        with pytest.raises(TrainerDiedError, match="the trainer's process died"):
            await client.step(batch(2))
        await client.restart()
        client.process._stillness = Stillness(silence_s=5)  # pyright: ignore[reportAttributeAccessIssue]
        os.kill(client.process_id, signal.SIGSTOP)
        assert await client.load(tmp_path / "step-1") == 1, "what was stopped is let go on"
        await client.step(batch(2))
        assert await _checksum(client, tmp_path, 2) == expected
    finally:
        await client.close()
    assert {process.pid for process in psutil.Process().children(recursive=True)} <= before
    assert (tmp_path / "logs" / "trainer.log").is_file()


@pytest.mark.ray
async def test_an_actor_that_cannot_start_says_why(settings, tmp_path):
    client = make_trainer("ray", settings(model_dir=tmp_path))
    try:
        with pytest.raises(TrainingError, match=r"is not a model folder: it has no config\.json"):
            await client.start()
    finally:
        await client.close()

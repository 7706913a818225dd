"""World size 2 on Ray: the numbers of one process, checkpoints that are gone on from, and no process left behind."""

import os
import signal
from dataclasses import replace
from functools import partial

import psutil
import pytest

from lightning_trainer.config import TrainingConfig
from lightning_trainer.config.policies.updates import LoraConfig
from lightning_trainer.errors import TrainingError
from lightning_trainer.training.remote import make_trainer
from lightning_trainer.types import TrainingBatch

pytestmark = [pytest.mark.verl, pytest.mark.ray]


_SHAPES = {1: "forks inside responses", 2: "shared prefixes"}
_SCHEDULE = {"mini_batches": 2, "ppo_epochs": 2}


@pytest.fixture
def batch(samples_of_shape):
    """The second has groups enough for two mini-batches."""
    return lambda step: TrainingBatch(policy="tiny", step=step, samples=tuple(samples_of_shape(step, _SHAPES[step])))


@pytest.fixture
async def group(settings, tmp_path):
    """Two processes of a trainer, not started."""
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    client = make_trainer("ray", settings(world_size=2, log_dir=tmp_path / "logs", **_SCHEDULE))
    try:
        yield client
    finally:
        await client.close()
    assert {process.pid for process in psutil.Process().children(recursive=True)} <= before


@pytest.mark.slow
async def test_two_processes_train_save_die_and_go_on_as_one_would(settings, batch, group, tmp_path):
    from safetensors.torch import load_file

    alone = make_trainer("inprocess", settings(**_SCHEDULE))
    await alone.start()
    expected = [await alone.step(batch(step)) for step in (1, 2)]
    await alone.publish(tmp_path / "alone", 2)
    scored = await alone.score([[1, 2, 3]])
    await alone.save(tmp_path / "of-one", 2)
    await alone.close()

    await group.start()
    assert len(set(group.process.process_ids)) == 2
    reports = [await group.step(batch(1))]
    await group.save(tmp_path / "step-1", 1)
    with pytest.raises(TrainingError, match="step 1 is done already"):
        await group.step(batch(1))
    with pytest.raises(TrainingError, match=r"was written with world_size = 1 in .*, and now it is world_size = 2"):
        await group.load(tmp_path / "of-one")
    with pytest.raises(TrainingError, match="cannot write the weights of version 1"):
        await group.publish(tmp_path / "absent" / "weights", 1)

    os.kill(group.process.process_ids[1], signal.SIGKILL)
    with pytest.raises(TrainingError, match="the trainer's process died"):
        await group.step(batch(2))
    await group.restart()
    assert await group.load(tmp_path / "step-1") == 1
    reports.append(await group.step(batch(2)))

    for ours, theirs in zip(reports, expected, strict=True):
        for name in ("loss", "grad_norm"):
            assert ours.metrics[name] == pytest.approx(theirs.metrics[name], rel=1e-4)
        assert ours.tokens_computed >= theirs.tokens_computed
    publication = await group.publish(tmp_path / "together", 2)
    assert publication.checksum
    ours, theirs = (load_file(tmp_path / name) for name in ("together", "alone"))
    assert ours.keys() == theirs.keys()
    # A fiftieth of one update (lr = 1e-3): AdamW divides by the gradient's own size, rounding included.
    assert max((ours[name] - theirs[name]).abs().max().item() for name in ours) < 2e-5
    assert (await group.score([[1, 2, 3]]))[0] == pytest.approx(scored[0], abs=1e-5)


@pytest.mark.slow
async def test_two_processes_train_an_adapter_over_rounded_weights_as_one_would(settings, batch, tmp_path):
    from safetensors.torch import load_file

    adapter = {"lora": LoraConfig(rank=4, alpha=8), "dtype": "bfloat16", "serving_dtype": "float32"}
    alone_or_not = (
        make_trainer("inprocess", settings(**adapter)),
        make_trainer("ray", settings(**adapter, world_size=2, log_dir=tmp_path / "logs")),
    )
    found = []
    for number, client in enumerate(alone_or_not):
        await client.start()
        try:
            report = await client.step(batch(1))
            await client.publish(tmp_path / f"of-{number}", 1)
        finally:
            await client.close()
        found.append((report.metrics, load_file(tmp_path / f"of-{number}")))
    (alone, of_one), (together, of_two) = found
    for name in ("loss", "grad_norm"):
        assert together[name] == pytest.approx(alone[name], rel=0.01)
    assert of_two.keys() == of_one.keys()
    # The first update moves each element by the learning rate (1e-3) in the direction of its gradient.
    apart = [(of_two[name] - of_one[name]).abs() > 1e-4 for name in of_one]
    assert sum(int(one.sum()) for one in apart) < 0.02 * sum(one.numel() for one in apart)


@pytest.mark.slow
async def test_two_processes_round_what_is_served_as_one_does(settings, tmp_path):
    served = settings(serving_dtype="bfloat16", log_dir=tmp_path / "logs")
    two = replace(served, training=served.training.model_copy(update={"world_size": 2}))
    checksums = set()
    for client in (make_trainer("inprocess", served), make_trainer("ray", two)):
        await client.start()
        try:
            checksums.add((await client.publish(tmp_path / "weights", 0)).checksum)
        finally:
            await client.close()
    assert len(checksums) == 1


def test_whatever_fails_in_the_first_process_is_an_error_of_all():
    from lightning_trainer.training.process_group import join_alone, on_first

    def fails(error):
        raise error

    join_alone()
    with pytest.raises(TrainingError, match="the first process failed: ZeroDivisionError: by nothing"):
        on_first(lambda: fails(ZeroDivisionError("by nothing")))
    for own in (TrainingError("as it is"), OSError("as it is")):
        with pytest.raises(type(own), match="as it is"):
            on_first(partial(fails, own))


def test_a_group_needs_ray():
    with pytest.raises(ValueError, match='world_size = 2 needs backend = "ray"'):
        TrainingConfig(world_size=2, backend="inprocess")

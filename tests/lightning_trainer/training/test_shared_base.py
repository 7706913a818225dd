"""Adapters of several policies on one base: each is trained, saved and published as if it had the base to itself."""

import os
import signal
from dataclasses import replace

import pytest

from lightning_trainer.config.policies.updates import LoraConfig
from lightning_trainer.errors import TrainerDiedError, TrainingError
from lightning_trainer.training.remote import make_trainer, make_trainers
from lightning_trainer.types import TrainingBatch

pytestmark = pytest.mark.verl

_OWN = {
    "planner": {"lr": 1e-2, "advantage": "grpo"},
    "worker": {"lr": 3e-3, "advantage": "reinforce_plus_plus", "kl_loss_coef": 0.1, "ppo_epochs": 2, "clip_grad": 0.1},
    "critic": {"lr": 5e-3, "advantage": "gae", "schedule": "cosine", "total_steps": 4, "weight_decay": 0.1},
}
"""Three policies that differ in all that is a policy's own: one measures the base below it, one has a critic."""


@pytest.fixture
def of_policies(settings):
    """Settings that share a base, by policy."""
    common = {"base": "one", "lora": LoraConfig(rank=4, alpha=8), "serving_dtype": "float32"}
    return {name: settings(policy=name, **common, **own) for name, own in _OWN.items()}


@pytest.fixture
def batch(samples_of_shape):
    return lambda policy, step: TrainingBatch(policy, step, tuple(samples_of_shape(step, "shared prefixes")))


@pytest.fixture
def alone(of_policies, batch, tmp_path):
    """Train policies with a base of their own; return reports and checksums after each step, by policy."""

    async def run(steps: int, *names: str) -> dict[str, list]:
        found: dict[str, list] = {}
        for name in names:
            trainer = make_trainer("inprocess", replace(of_policies[name], base=None))
            await trainer.start()
            found[name] = [await _trained(trainer, batch(name, step), tmp_path) for step in range(1, steps + 1)]
            await trainer.close()
        return found

    return run


async def _trained(trainer, batch, folder):
    report = await trainer.step(batch)
    published = await trainer.publish(folder / "published", batch.step)
    return report.metrics, report.advantages, published.checksum, published.probe.logprobs


def _same(ours, theirs) -> None:
    metrics, theirs_metrics = (
        {key: value for key, value in found[0].items() if not key.startswith("perf/") and key != "mfu"}
        for found in (ours, theirs)
    )
    assert metrics == theirs_metrics
    assert ours[1:] == theirs[1:], "advantages, weights and scores are the same to the bit"


async def test_each_trains_as_it_would_alone_whoever_comes_between_and_goes_on_from_its_checkpoint(
    of_policies, batch, alone, tmp_path
):
    expected = await alone(3, *of_policies)
    trainers = dict(zip(of_policies, make_trainers("inprocess", list(of_policies.values())), strict=True))
    assert len({id(trainer.process) for trainer in trainers.values()}) == 1
    for trainer in trainers.values():
        await trainer.start()
    fresh = {name: await trainer.score([[1, 2, 3]]) for name, trainer in trainers.items()}
    assert len(set(fresh.values())) == 1, "an untrained adapter is the base"

    for step in (1, 2):
        for name, trainer in trainers.items():
            _same(await _trained(trainer, batch(name, step), tmp_path), expected[name][step - 1])
            await trainer.save(tmp_path / name / str(step), step)
    # One is restarted and the others stay where they are.
    await trainers["worker"].restart()
    assert await trainers["worker"].score([[1, 2, 3]]) == fresh["worker"]
    assert await trainers["worker"].load(tmp_path / "worker" / "1") == 1
    with pytest.raises(TrainingError, match="is a checkpoint of policy 'planner', not of 'worker'"):
        await trainers["worker"].load(tmp_path / "planner" / "1")
    _same(await _trained(trainers["planner"], batch("planner", 3), tmp_path), expected["planner"][2])
    for step in (2, 3):
        _same(await _trained(trainers["worker"], batch("worker", step), tmp_path), expected["worker"][step - 1])
    # A checkpoint does not say who shared the base: one that was written here is gone on from alone.
    own = make_trainer("inprocess", replace(of_policies["critic"], base=None))
    await own.start()
    await own.load(tmp_path / "critic" / "2")
    _same(await _trained(own, batch("critic", 3), tmp_path), expected["critic"][2])
    await own.close()
    _same(await _trained(trainers["critic"], batch("critic", 3), tmp_path), expected["critic"][2])
    for trainer in trainers.values():
        await trainer.close()


async def test_what_fails_in_one_is_not_seen_in_another(of_policies, batch, alone, tmp_path):
    expected = await alone(2, "planner", "worker")
    trainers = dict(zip(of_policies, make_trainers("inprocess", list(of_policies.values())), strict=True))
    for name, trainer in trainers.items():
        await trainer.start()
        await trainer.step(batch(name, 1))
    await trainers["worker"].save(tmp_path / "saved", 1)
    with pytest.raises(TrainingError, match="step 1 is done already"):
        await trainers["planner"].step(batch("planner", 1))
    with pytest.raises(TrainingError, match="cannot write the weights"):
        await trainers["planner"].publish(tmp_path / "absent" / "weights", 1)
    await trainers["critic"].close()
    _same(await _trained(trainers["worker"], batch("worker", 2), tmp_path), expected["worker"][1])

    # In the middle of a pass, by an unexpected error: nothing in that process is relied on any longer.
    with pytest.raises(TrainingError, match="the trainer failed: IndexError"):
        await trainers["planner"].score([[1, 100_000]])
    with pytest.raises(TrainerDiedError, match="the process that trains planner, worker, critic has to be replaced"):
        await trainers["worker"].score([[1, 2]])
    await trainers["worker"].restart()
    await trainers["worker"].load(tmp_path / "saved")
    await trainers["planner"].restart()
    for step in (1, 2):
        _same(await _trained(trainers["planner"], batch("planner", step), tmp_path), expected["planner"][step - 1])
    _same(await _trained(trainers["worker"], batch("worker", 2), tmp_path), expected["worker"][1])
    for trainer in trainers.values():
        await trainer.close()


@pytest.mark.slow
async def test_two_processes_hold_one_base_together_and_are_replaced_for_all_its_policies(
    of_policies, batch, alone, tmp_path
):
    """Of two processes the numbers of one, to rounding; a kill of either ends both, and each policy goes on alone."""
    names = ("planner", "worker")
    expected = await alone(2, *names)
    two = of_policies[names[0]].training.model_copy(update={"world_size": 2})
    settings = [replace(of_policies[name], training=two, log_dir=tmp_path / "logs") for name in names]
    trainers = dict(zip(names, make_trainers("ray", settings), strict=True))
    try:
        for name, trainer in trainers.items():
            await trainer.start()
            await trainer.step(batch(name, 1))
            await trainer.save(tmp_path / name, 1)
        assert trainers["planner"].process_id == trainers["worker"].process_id is not None
        await trainers["worker"].step(batch("worker", 2))  # which nobody saves
        os.kill(trainers["planner"].process.process_ids[1], signal.SIGKILL)  # pyright: ignore[reportAttributeAccessIssue]
        with pytest.raises(TrainerDiedError, match="process died"):
            await trainers["planner"].step(batch("planner", 2))
        with pytest.raises(TrainerDiedError, match="has to be replaced"):
            await trainers["worker"].score([[1, 2]])
        for name, trainer in trainers.items():
            await trainer.restart()
            assert await trainer.load(tmp_path / name) == 1
        for name, trainer in trainers.items():
            metrics, _, _, probe = await _trained(trainer, batch(name, 2), tmp_path)
            for metric in ("loss", "grad_norm"):
                assert metrics[metric] == pytest.approx(expected[name][1][0][metric], rel=1e-3, abs=1e-6)
            for ours, theirs in zip(probe, expected[name][1][3], strict=True):
                assert ours == pytest.approx(theirs, abs=1e-3)
    finally:
        for trainer in trainers.values():
            await trainer.close()

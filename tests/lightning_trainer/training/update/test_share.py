"""Two processes that divide a batch take the step that one would take with all of it."""

import os
import pickle
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightning_trainer.types import Sample, TrainingBatch

pytestmark = [pytest.mark.verl, pytest.mark.slow]

_TOLERANCE = 1e-5
_CASES: dict[str, dict[str, Any]] = {
    "critic and reference": {"preset": "ppo"},
    "many micro-batches": {"max_tokens_per_micro_batch": 60},
    "a mean over sequences": {"policy_loss": "geo_mean"},
    "sequence ratios, entropy": {"preset": "gspo", "entropy_coeff": 0.01},
    "gradient checkpointing": {"gradient_checkpointing": True},
    "verl's own engine": {"attention": "stock"},
    "drawn from less than all": {"preset": "ppo", "max_tokens_per_micro_batch": 60, "entropy_coeff": 0.01},
    "drawn from less than all, verl's own engine": {"attention": "stock", "max_tokens_per_micro_batch": 60},
    "epochs of mini-batches": {"mini_batches": 2, "ppo_epochs": 2},
    "fewer samples than processes": {"advantage": "credit"},
    "fewer samples than processes, verl's own engine": {"advantage": "credit", "attention": "stock"},
}


def _batch(samples_of_shape, drawn, case: str, step: int) -> TrainingBatch:
    shape = "shared prefixes" if case.startswith("epochs") else "masks with holes"  # enough groups for two
    samples = samples_of_shape(step, shape)
    if case.startswith("drawn"):
        samples = drawn(samples, step, temperatures=(1.0, 0.7))
    return TrainingBatch("tiny", step, (_shared(samples[0]),) if case.startswith("fewer") else tuple(samples))


def _shared(sample: Sample) -> Sample:
    """A sample whose runs were sampled in two attempts, as one of a token tree can be: one attempt is not a group."""
    assert len(sample.segments) > 1
    attempts = "first", "second"
    runs = tuple(replace(run, attempt_id=attempts[number % 2]) for number, run in enumerate(sample.segments))
    return replace(sample, segments=runs)


def _run(settings, batches, folder: Path) -> tuple:
    """Steps, and what comes out: reports, scores, published weights."""
    from safetensors.torch import load_file

    from lightning_trainer.training.trainer import Trainer

    trainer = Trainer(settings)
    reports = [trainer.step(batch) for batch in batches]
    publication = trainer.publish(folder / "weights", 1)
    weights = {name: value.tolist() for name, value in load_file(folder / "weights").items()}
    return reports, trainer.score([[1, 2, 3], [4, 5]]), publication.probe.logprobs, weights


def _process(rank: int, folder: Path) -> None:
    """One of two processes: all cases, one after the other."""
    import torch.distributed as dist

    from lightning_trainer.training.process_group import Host, Meeting, join

    host, meeting = None, folder / "meeting"
    if rank == 0:
        host = Host("127.0.0.1", 2)
        (folder / "partial").write_text(str(host.meeting.port))
        (folder / "partial").rename(meeting)
    while not meeting.exists():
        time.sleep(0.05)
    join(Meeting("127.0.0.1", int(meeting.read_text())), rank, 2, host)
    cases = pickle.loads((folder / "cases").read_bytes())
    found = {case: _run(settings, batches, folder) for case, (settings, batches) in cases.items()}
    (folder / f"found-{rank}").write_bytes(pickle.dumps(found))
    dist.barrier()
    os._exit(0)  # gloo's threads would wait for each other's ends


@pytest.fixture(scope="module")
def both(tmp_path_factory, tiny_models, sections, samples_of_shape, drawn):
    """By case: what one process and what two find."""
    from lightning_trainer.training.settings import TrainerSettings

    folder, cases = tmp_path_factory.mktemp("share"), {}
    base = {"policy": "tiny", "model_dir": tiny_models(), "lr": 1e-3, "max_tokens_per_micro_batch": 256}
    for case, changes in _CASES.items():
        settings = TrainerSettings(**sections({**base, **changes}))
        cases[case] = settings, [_batch(samples_of_shape, drawn, case, step) for step in (1, 2)]
    (folder / "cases").write_bytes(pickle.dumps(cases))
    running = [subprocess.Popen([sys.executable, __file__, str(rank), str(folder)]) for rank in range(2)]
    try:
        assert [process.wait(timeout=280) for process in running] == [0, 0]
    finally:
        for process in running:
            process.kill()
    together = [pickle.loads((folder / f"found-{rank}").read_bytes()) for rank in range(2)]
    alone = {case: _run(settings, batches, folder) for case, (settings, batches) in cases.items()}
    return alone, together


@pytest.mark.parametrize("case", _CASES)
def test_two_processes_take_the_step_of_one(case, both):
    alone, together = (found[case] for found in (both[0], both[1][0]))
    for ours, theirs in zip(together[0], alone[0], strict=True):
        for name in ("loss", "grad_norm", "mismatch/abs_mean", "mismatch/abs_max", "critic/vf_loss", "actor/pg_loss"):
            if name in theirs.metrics:
                assert ours.metrics[name] == pytest.approx(theirs.metrics[name], rel=_TOLERANCE, abs=_TOLERANCE), name
        assert ours.advantages.keys() == theirs.advantages.keys()
        for sample, row in theirs.advantages.items():
            assert ours.advantages[sample] == pytest.approx(row, abs=_TOLERANCE)
        assert ours.tokens_trained == theirs.tokens_trained
        assert theirs.metrics["grad_norm"] > 10 * _TOLERANCE
    for ours, theirs in zip([*together[1], *together[2]], [*alone[1], *alone[2]], strict=True):
        assert ours == pytest.approx(theirs, abs=_TOLERANCE)


@pytest.mark.parametrize("case", _CASES)
def test_the_published_weights_are_those_of_one(case, both):
    import torch

    ours, theirs = (found[case][3] for found in (both[1][0], both[0]))
    assert ours.keys() == theirs.keys()
    for name, values in theirs.items():
        # Adam divides by the gradient's size: where that is rounding alone, so is the step, of lr = 1e-3 at most.
        torch.testing.assert_close(torch.tensor(ours[name]), torch.tensor(values), rtol=0, atol=1e-4, msg=name)


def test_every_process_knows_the_whole(both):
    first, second = both[1]
    assert {case: found[1:3] for case, found in first.items()} == {case: found[1:3] for case, found in second.items()}


if __name__ == "__main__":
    _process(int(sys.argv[1]), Path(sys.argv[2]))

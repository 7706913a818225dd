"""What is served is what was trained, in bfloat16 too: small steps arrive, and the trainer computes with the same."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lightning_trainer.training.update.rounding import round_by_thresholds, rounded_weights, undo_rounding

pytestmark = pytest.mark.torch

FINITE = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)
PERIOD = 65521


@given(arrays(np.float32, st.integers(0, 40), elements=FINITE), st.integers(0, 10**12))
def test_a_value_becomes_a_neighbor_of_bfloat16_and_comes_back_bit_for_bit(values, first):
    whole = torch.from_numpy(values.copy())
    low = round_by_thresholds(whole, first)
    assert torch.equal(whole.bfloat16().float(), whole)
    below = (torch.from_numpy(values).view(torch.int32) & ~0xFFFF).view(torch.float32)  # towards zero
    above = (below.view(torch.int32) + 0x10000).view(torch.float32)
    assert ((whole == below) | (whole == above)).all()
    undo_rounding(whole, low, first)
    assert np.array_equal(whole.numpy().view(np.int32), values.view(np.int32))


@given(st.lists(st.integers(0, 2 * PERIOD), min_size=1, max_size=3), st.integers(0, 2**31))
def test_parts_are_rounded_as_the_whole(cuts, seed):
    """Whatever the number of processes: each holds a part."""
    values = torch.randn(2 * PERIOD + 7, generator=torch.Generator().manual_seed(seed))
    whole = values.clone()
    round_by_thresholds(whole, 0)
    for start, stop in zip(edges := sorted({0, *cuts, len(values)}), edges[1:], strict=False):
        part = values[start:stop].clone()
        round_by_thresholds(part, start)
        assert torch.equal(part, whole[start:stop])


def test_what_bfloat16_represents_stays():
    values = torch.randn(1000).bfloat16().float()
    values[:4] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf])
    values[4] = torch.nan
    rounded = values.clone()
    round_by_thresholds(rounded, 5)
    assert torch.equal(rounded.view(torch.int32), values.view(torch.int32))


@pytest.mark.parametrize("shape", [(300_000,), (256, 4096), (576, 1536)])
@pytest.mark.parametrize("moved", [1e-6, 3e-5])
def test_steps_far_below_the_distance_of_two_neighbors_arrive(shape, moved):
    """All of what was learned is there; rounded to nearest it is a small part, of the weights near zero."""
    generator = torch.Generator().manual_seed(0)
    before = (0.05 * torch.randn(shape, generator=generator)).bfloat16().float()
    step = moved * torch.randn(shape, generator=generator)
    after = before + step
    step = after - before  # as far as float32 has it
    nearest = ((after.bfloat16().float() - before) * step).sum() / (step * step).sum()
    round_by_thresholds(after, 0)
    arrived = ((after - before) * step).sum() / (step * step).sum()
    assert arrived == pytest.approx(1.0, abs=0.05)
    assert nearest < 0.5


def test_frozen_weights_are_rounded_to_nearest_and_all_are_taken_back_wherever_they_lie():
    """They are moved when they are offloaded between two passes."""
    module = torch.nn.Linear(4, 4)
    module.bias.requires_grad_(False)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with rounded_weights(module, torch.bfloat16):
        assert torch.equal(module.bias, before["bias"].bfloat16().float())
        assert not torch.equal(module.weight, before["weight"])
        for parameter in module.parameters():
            parameter.data = parameter.data.clone()
    assert all(torch.equal(module.state_dict()[name], value) for name, value in before.items())


@pytest.mark.verl
@pytest.mark.parametrize("attention", ["tree", "stock"])
def test_the_trainer_computes_with_what_is_served_and_learns_in_full(settings, samples_of_shape, tmp_path, attention):
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    from lightning_trainer.training.trainer import Trainer
    from lightning_trainer.types import TrainingBatch

    made = settings(lr=3e-5, serving_dtype="bfloat16", dtype="float32", attention=attention)
    trainer, samples = Trainer(made), tuple(samples_of_shape(1, "shared prefixes"))
    for step in range(1, 4):
        trainer.step(TrainingBatch(policy="tiny", step=step, samples=samples))
    masters = {name: value.clone() for name, value in trainer.module.state_dict().items()}
    publication = trainer.publish(tmp_path / "weights", 3)
    served = load_file(tmp_path / "weights")
    model = AutoModelForCausalLM.from_pretrained(made.model_dir, dtype=torch.float32)
    at_first = {name: value.clone() for name, value in model.state_dict().items()}

    model.load_state_dict({name: value.float() for name, value in served.items()}, strict=False)
    for sample, ours in zip(samples, trainer._learner.policy.logprobs(samples), strict=True):
        logprobs = model(torch.tensor([sample.token_ids])).logits[0].log_softmax(-1)
        theirs = [
            logprobs[place - 1, token].item() if sample.loss_mask[place] else 0.0
            for place, token in enumerate(sample.token_ids)
        ]
        assert ours == pytest.approx(theirs, abs=1e-4)
    score = trainer.score(publication.probe.token_ids)
    assert score == publication.probe.logprobs

    moved = {name: _local(masters[name]) - at_first[name] for name in served}
    errors = {name: served[name].float() - _local(masters[name]) for name in served}
    along = sum(float((errors[name] * moved[name]).sum()) for name in served)
    assert abs(along) < 0.05 * sum(float((one * one).sum()) for one in moved.values())


def _local(tensor: torch.Tensor) -> torch.Tensor:
    from lightning_trainer.training.update.rounding import local_values

    return local_values(tensor)

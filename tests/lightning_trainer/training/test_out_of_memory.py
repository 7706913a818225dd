"""A trainer that runs out of a GPU's memory names the settings with which it needs less."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lightning_trainer.config.policies.updates import LoraConfig
from lightning_trainer.errors import TrainerBrokenError
from lightning_trainer.training.device import settings_named_without_memory
from lightning_trainer.training.in_process import InProcess
from lightning_trainer.training.on_ray.process import TrainerActor
from lightning_trainer.training.settings import TrainerSettings, one_thread

pytestmark = pytest.mark.torch

SETTINGS = TrainerSettings("p", Path("model"))
SAID = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1 GiB is free."


class Full:
    """Trainers whose GPU is full."""

    def call(self, policy: str, method: str) -> None:
        raise torch.OutOfMemoryError(SAID)


def told(settings: TrainerSettings) -> str:
    with pytest.raises(TrainerBrokenError) as raised, settings_named_without_memory(settings):
        raise torch.OutOfMemoryError(SAID)
    return str(raised.value)


def test_the_settings_that_help_are_named():
    assert told(SETTINGS) == (
        "the trainer has too little memory (CUDA out of memory); lower max_tokens_per_micro_batch in [training] (now "
        "8192), lower max_sample_tokens of the policy for later steps (now 2048), set gradient_checkpointing = true in "
        "[training], or train an adapter ([policy.lora])"
    )


def test_what_cannot_help_is_not_named():
    lean = one_thread().model_copy(update={"max_tokens_per_micro_batch": 1024, "gradient_checkpointing": True})
    on = replace(SETTINGS, training=lean, lora=LoraConfig(rank=4))
    assert told(on).endswith("; lower max_sample_tokens of the policy for later steps (now 2048)")
    assert told(replace(on, training=lean.model_copy(update={"param_offload": True}))).endswith(
        ", or lower gpu_memory_utilization in [engine] if it does not sleep"
    )


def test_any_other_error_is_left_as_it_is():
    with pytest.raises(RuntimeError, match="another") as raised, settings_named_without_memory(SETTINGS):
        raise RuntimeError("another")
    assert type(raised.value) is RuntimeError


async def test_it_is_said_by_a_trainer_of_this_process_and_by_an_actor():
    process = InProcess([SETTINGS])
    process._trainers = Full()  # pyright: ignore[reportAttributeAccessIssue]
    process._open.add("p")
    with pytest.raises(TrainerBrokenError, match="lower max_tokens_per_micro_batch"):
        await process.call("p", "step")
    assert not process.holds("p")  # it is replaced as a whole
    actor = TrainerActor([SETTINGS], rank=0)
    actor._trainers = Full()
    with pytest.raises(TrainerBrokenError, match="lower max_tokens_per_micro_batch"):
        actor.ask("call", "p", "step")

"""The frozen model that divergences and preferences are taken from.

A reference that is named in the configuration never changes. Otherwise it is the policy as it was when the stage began:
in the first stage the model that the run started from, in a later one what the stage before left (SFT's policy is the
reference of the RL after it). For a LoRA policy, that is the model below the adapter, alone or with an earlier adapter:
no second model is loaded.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from transformers import AutoModelForCausalLM

from lightning_trainer.errors import TrainingError
from lightning_trainer.training.process_group import on_first
from lightning_trainer.training.settings import TrainerSettings
from lightning_trainer.training.update.adapter_weights import (
    adapter_tensors,
    adapter_values,
    name_in_module,
    with_values,
)
from lightning_trainer.training.update.configuration import worker_config
from lightning_trainer.training.update.exporting import exported_tensors, write_atomically
from lightning_trainer.training.update.host import ModelHost
from lightning_trainer.training.update.rounding import rounded_weights
from lightning_trainer.training.update.worker import UpdateWorker
from lightning_trainer.types import Sample

_NAME = "reference-{:08d}.safetensors"
"""Name of the file in a checkpoint, with the first step of the stage that it is the reference of."""


class Reference(ModelHost):
    """A reference model of its own, which is run and never trained."""

    def __init__(self, settings: TrainerSettings) -> None:
        """Load it.

        Raises:
            TrainingError: it cannot be used.
        """
        self.folder = settings.reference_dir or settings.model_dir
        self._follows = settings.reference_dir is None
        self._first_step = 1
        super().__init__(settings, worker_config(settings, self.folder))

    def is_of(self, first_step: int) -> bool:
        """Whether it is the reference of the stage that began with this step, as a named model is of every stage."""
        return not self._follows or first_step == self._first_step

    def begin(self, first_step: int, policy: ModelHost) -> None:
        """Become the policy as it is served, unless a stage that began with this step has done so before."""
        if self.is_of(first_step):
            return
        with torch.no_grad(), rounded_weights(policy.module, policy.engine.served_dtype or torch.float32):
            theirs = dict(policy.module.named_parameters())
            for name, parameter in self.module.named_parameters():
                parameter.copy_(theirs[name])
        self._first_step = first_step

    def save(self, folder: Path, step: int) -> None:
        """Write what the model folder does not have: nothing in the first stage."""
        if self._first_step > 1:
            tensors = exported_tensors(self.module, torch.float32)
            on_first(lambda: write_atomically(tensors, folder / _NAME.format(self._first_step)))

    def load(self, folder: Path) -> None:
        """Read what ``save`` wrote; without it, become the model that the run started from, unless one is named.

        Raises:
            TrainingError: it is damaged.
        """
        kept = _kept(folder) if self._follows else None
        if kept is not None:
            path, first_step = kept
            _take(self.module, path)
            self._first_step = first_step
        elif self._first_step > 1:
            start = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32)
            _put(self.module, start.state_dict())
            self._first_step = 1


class AdapterReference:
    """A LoRA policy's reference: its own model without the adapter, or with the one that a later stage began with."""

    images = None
    """The images are those that the policy is shown, since the reference is the policy's own model."""

    def __init__(self, policy: UpdateWorker) -> None:
        self._policy = policy
        self._first_step = 1
        self._values: Mapping[str, torch.Tensor] = {}

    def is_of(self, first_step: int) -> bool:
        """Whether it is the reference of the stage that began with this step."""
        return first_step == self._first_step

    def begin(self, first_step: int, policy: ModelHost) -> None:
        """Become the policy as it is, unless a stage that began with this step has done so before."""
        if not self.is_of(first_step):
            self._values, self._first_step = adapter_values(policy.module), first_step

    def measure(self, samples: Sequence[Sample], *names: str) -> dict[str, dict[str, list[float]]]:
        """See ``ModelHost``."""
        if self._first_step == 1:
            return self._policy.measure(samples, *names, adapter=False)
        with with_values(self._policy.module, self._values):
            return self._policy.measure(samples, *names, replay=False)

    def save(self, folder: Path, step: int) -> None:
        """Write what the model folder does not have: nothing in the first stage."""
        if self._first_step > 1:
            with with_values(self._policy.module, self._values):
                tensors = adapter_tensors(self._policy.module, torch.float32)
            on_first(lambda: write_atomically(tensors, folder / _NAME.format(self._first_step)))

    def load(self, folder: Path) -> None:
        """Read what ``save`` wrote; without it, become the model that the run started from.

        Raises:
            TrainingError: it is damaged.
        """
        kept, module = _kept(folder), self._policy.module
        self._values, self._first_step = {}, 1
        if kept is not None:
            path, first_step = kept
            with with_values(module, {}):
                _take(module, path, rename=name_in_module)
                self._values, self._first_step = adapter_values(module), first_step


def _kept(folder: Path) -> tuple[Path, int] | None:
    """Return the path of the reference in a checkpoint, and the first step of its stage; None if there is none."""
    path = next(folder.glob(_NAME.replace("{:08d}", "*")), None)
    return None if path is None else (path, int(path.stem.rpartition("-")[2]))


def _take(module: torch.nn.Module, path: Path, rename: Callable[[str], str] = str) -> None:
    try:
        _put(module, {rename(name): value for name, value in load_file(path).items()})
    except (SafetensorError, OSError, RuntimeError) as error:
        raise TrainingError(f"cannot load the reference {path}: {error}") from error


def _put(module: torch.nn.Module, tensors: dict[str, Any]) -> None:
    # Tied embeddings are written once: a missing name is another name of a tensor that exists.
    set_model_state_dict(module, tensors, options=StateDictOptions(full_state_dict=True, strict=False))

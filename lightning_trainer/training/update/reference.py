"""The frozen model that divergences and preferences are taken from.

One that is named stays what it is. Else it is the policy as it was when the stage began: the model that the run started
from in the first stage, what the stage before left in a later one (SFT's policy is the reference of the RL behind it).
"""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from transformers import AutoModelForCausalLM

from lightning_trainer.errors import TrainingError
from lightning_trainer.training.settings import TrainerSettings
from lightning_trainer.training.update.adapter_weights import adapter_tensors, name_in_module
from lightning_trainer.training.update.configuration import worker_config
from lightning_trainer.training.update.exporting import exported_tensors, write_atomically
from lightning_trainer.training.update.host import ModelHost

_NAME = "reference-{:08d}.safetensors"
"""In a checkpoint: with the first step of the stage that it is the reference of."""


class Reference(ModelHost):
    """Run and never trained."""

    def __init__(self, settings: TrainerSettings) -> None:
        """Load it.

        Raises:
            TrainingError: it cannot be used.
        """
        self.folder = settings.reference_dir or settings.model_dir
        self._follows = settings.reference_dir is None
        self._first_step = 1
        self._lora = settings.lora if self._follows else None
        super().__init__(settings, worker_config(settings, self.folder, lora=self._lora))

    def begin(self, first_step: int, policy: ModelHost) -> None:
        """Become the policy as it is, unless a stage that began with this step has done so before."""
        if not self._follows or first_step == self._first_step:
            return
        theirs = dict(policy.module.named_parameters())
        with torch.no_grad():
            for name, parameter in self.module.named_parameters():
                parameter.copy_(theirs[name])
        self._first_step = first_step

    def save(self, folder: Path, step: int) -> None:
        """Write what the model folder does not have: nothing in the first stage."""
        if self._first_step > 1:
            export = exported_tensors if self._lora is None else adapter_tensors
            tensors = export(self.module, torch.float32)
            write_atomically(tensors, folder / _NAME.format(self._first_step))

    def load(self, folder: Path) -> None:
        """Read what ``save`` wrote; without it, be the model that the run started from.

        Raises:
            TrainingError: it is damaged.
        """
        kept = next(folder.glob(_NAME.replace("{:08d}", "*")), None)
        if kept is not None:
            try:
                self._take(load_file(kept))
            except (SafetensorError, OSError, RuntimeError) as error:
                raise TrainingError(f"cannot load the reference {kept}: {error}") from error
            self._first_step = int(kept.stem.rpartition("-")[2])
        elif self._first_step > 1 and self._lora is not None:
            self._take(
                {name: torch.zeros_like(value) for name, value in adapter_tensors(self.module, torch.float32).items()}
            )
            self._first_step = 1
        elif self._first_step > 1:
            start = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32)
            self._take(start.state_dict())
            self._first_step = 1

    def _take(self, tensors: dict[str, Any]) -> None:
        if self._lora is not None:
            tensors = {name_in_module(name): value for name, value in tensors.items()}
        # Tied embeddings are written once: a name that is lacking is another name of what is there.
        set_model_state_dict(self.module, tensors, options=StateDictOptions(full_state_dict=True, strict=False))

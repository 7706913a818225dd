"""A batch of verl's as plain arrays: what each sample computes, and at which of its positions something is asked."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from verl.utils import tensordict_utils as tu

from lightning_trainer.errors import TrainingError
from lightning_trainer.training.tree.trie import Ints

FILLED = "lightning_filled"
"""Key of what tells that samples of a batch may have no trained token: see ``share``."""


class PackedSamples:
    """The samples of a jagged TensorDict, one after the other."""

    def __init__(self, batch: Any) -> None:
        """
        Raises:
            TrainingError: a sample has no trained token, or positions of its own.
        """
        self.offsets: Ints = batch["input_ids"].offsets().cpu().numpy()
        """Where each sample starts in ``ids``, and the end."""
        self.ids: Ints = batch["input_ids"].values().cpu().numpy()
        self.asked: list[Ints] = []
        """Per sample, the positions whose next token is trained: what ``loss_mask`` marks, one earlier."""
        prompts = np.diff(batch["prompts"].offsets().cpu().numpy())
        mask = batch["loss_mask"].values().cpu().numpy()
        mask_offsets = batch["loss_mask"].offsets().cpu().numpy()
        filled = tu.get_non_tensor_data(batch, FILLED, False)
        for index, prompt in enumerate(prompts):
            asked = np.flatnonzero(mask[mask_offsets[index] : mask_offsets[index + 1]]) + prompt - 1
            if not len(asked):
                if not filled:
                    raise TrainingError(f"sample {index} of the batch has no token to train; leave it out")
                asked = np.zeros(1, np.int64)  # one token takes part in the pass; the loss does not look at it
            self.asked.append(asked)
        counted = np.arange(len(self.ids)) - np.repeat(self.offsets[:-1], np.diff(self.offsets))
        if not np.array_equal(batch["position_ids"].values().cpu().numpy(), counted):
            raise TrainingError("the positions of a sample do not count from 0; give it those of its tokens")

    def computed(self) -> list[Ints]:
        """The tokens that must go through the model: of each sample up to the last position that is asked for."""
        starts = self.offsets[:-1]
        return [self.ids[start : start + asked[-1] + 1] for start, asked in zip(starts, self.asked, strict=True)]


def temperatures(micro_batch: Any, samples: int) -> npt.NDArray[np.float64]:
    """One value a sample: verl takes a number for all of them or a tensor."""
    temperature = micro_batch.get("temperature", None)
    if not isinstance(temperature, torch.Tensor):
        one: Any = tu.get_non_tensor_data(micro_batch, "temperature", 1.0)
        temperature = torch.full((samples,), float(one))
    return temperature.double().cpu().numpy()

"""A batch of verl's as plain arrays, divided over the processes of a group, and their results put together again.

The arrays say which tokens of each sample are computed, and at which positions a result is asked for. Invariant of
dividing: loss and gradients are those of one process up to rounding. verl's losses divide by the tokens and samples of
the whole batch, and FSDP averages gradients over processes. A process with less to do than FSDP needs of every process
is given a sample without trained tokens, which adds nothing.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from lightning_trainer.errors import TrainingError
from lightning_trainer.training.process_group import gathered
from lightning_trainer.training.tree.trie import Ints, divide

FILLED = "lightning_filled"
"""Key of the flag that samples of a batch may have no trained token: see ``Share``."""


class PackedSamples:
    """The samples of a jagged TensorDict, one after the other."""

    def __init__(self, batch: Any) -> None:
        """Read a batch.

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
        """Return the tokens that must go through the model: of each sample, up to the last position asked for."""
        starts = self.offsets[:-1]
        return [self.ids[start : start + asked[-1] + 1] for start, asked in zip(starts, self.asked, strict=True)]


def temperatures(micro_batch: Any, samples: int) -> npt.NDArray[np.float64]:
    """Return one value per sample: verl takes a number for all of them or a tensor."""
    temperature = micro_batch.get("temperature", None)
    if not isinstance(temperature, torch.Tensor):
        one: Any = tu.get_non_tensor_data(micro_batch, "temperature", 1.0)
        temperature = torch.full((samples,), float(one))
    return temperature.double().cpu().numpy()


class Share:
    """One process's share of a batch."""

    def __init__(self, batch: TensorDict, *, tree: bool) -> None:
        """Divide a batch, and take this process's part.

        Args:
            batch: jagged, of the whole group.
            tree: samples that share a prefix stay together.
        """
        self._size = len(batch)
        self._parts = _parts(batch, dist.get_world_size(), tree)
        own = self._parts[dist.get_rank()]
        # The stock engine also needs the same number of samples in every process.
        wanted = 1 if tree else max(map(len, self._parts))
        fillers = max(0, wanted - len(own))
        self.batch = batch if dist.get_world_size() == 1 else _with_fillers(batch, own, fillers)

    def of_all(self, found: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """Return the rows of the whole batch, in its order, given those of each process's share."""
        everywhere = gathered(found)
        rows: dict[str, list[Any]] = {name: [None] * self._size for name in found}
        for part, of_process in zip(self._parts, everywhere, strict=True):
            for name, values in of_process.items():
                for index, value in zip(part, values, strict=False):  # fillers come last
                    rows[name][index] = value
        return rows


def _parts(batch: TensorDict, processes: int, tree: bool) -> list[list[int]]:
    if processes == 1:
        return [list(range(len(batch)))]
    if tree:
        return divide(PackedSamples(batch).computed(), processes)
    ids: Any = batch["input_ids"]
    lengths: list[int] = ids.offsets().diff().tolist()
    longest_first = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    return [longest_first[rank::processes] for rank in range(processes)]


def filler(batch: TensorDict) -> TensorDict:
    """Return a batch of one sample with nothing in it to train."""
    return _with_fillers(batch, [], 1)


def _with_fillers(batch: TensorDict, own: Sequence[int], fillers: int) -> TensorDict:
    """Return the samples ``own`` and, ``fillers`` times, the batch's first sample with nothing in it to train."""
    chosen: Any = tu.index_select_tensor_dict(batch, [*own, *[0] * fillers])
    if fillers:
        for name in ("loss_mask", "response_mask"):
            offsets = chosen[name].offsets()
            values = chosen[name].values().clone()
            values[offsets[len(own)] :] = 0
            chosen[name] = torch.nested.nested_tensor_from_jagged(values, offsets)
        tu.assign_non_tensor(chosen, **{FILLED: True})
    return chosen

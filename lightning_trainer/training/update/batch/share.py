"""A batch divided over the processes of a group, and what they found put together again.

Invariant: loss and gradients are those of one process up to rounding. verl's losses divide by the tokens and samples of
the whole batch, and FSDP averages gradients over processes. A process that would have less to do than FSDP needs it to
take part in is given a sample without trained tokens, which adds nothing.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from lightning_trainer.training.process_group import gathered
from lightning_trainer.training.tree.trie import divide
from lightning_trainer.training.update.batch.packed import FILLED, PackedSamples


class Share:
    """What one process does of a batch."""

    def __init__(self, batch: TensorDict, *, tree: bool) -> None:
        """
        Args:
            batch: jagged, of the whole group.
            tree: what shares a prefix stays together.
        """
        self._size = len(batch)
        self._parts = _parts(batch, dist.get_world_size(), tree)
        own = self._parts[dist.get_rank()]
        # The stock engine also wants as many samples everywhere.
        wanted = 1 if tree else max(map(len, self._parts))
        fillers = max(0, wanted - len(own))
        self.batch = batch if dist.get_world_size() == 1 else _with_fillers(batch, own, fillers)

    def of_all(self, found: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """Return rows of the whole batch, in its order, for rows of each process's share."""
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
    """The samples ``own``, and so many times the first of all with nothing in it to train."""
    chosen: Any = tu.index_select_tensor_dict(batch, [*own, *[0] * fillers])
    if fillers:
        for name in ("loss_mask", "response_mask"):
            offsets = chosen[name].offsets()
            values = chosen[name].values().clone()
            values[offsets[len(own)] :] = 0
            chosen[name] = torch.nested.nested_tensor_from_jagged(values, offsets)
        tu.assign_non_tensor(chosen, **{FILLED: True})
    return chosen

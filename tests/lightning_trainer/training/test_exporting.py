"""What is published and kept is gathered by all processes of a trainer, and held by the first alone."""

import pytest
import torch

from lightning_trainer.training.update.adapter_weights import adapter_tensors
from lightning_trainer.training.update.exporting import as_in_checkpoints, exported_tensors, gathered_by_first

pytestmark = pytest.mark.torch


@pytest.fixture
def rank(monkeypatch):
    return lambda number: monkeypatch.setattr(torch.distributed, "get_rank", lambda: number)


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Linear(2, 3, bias=False)
        self.head = self.embedding


def test_the_first_process_has_each_tensor_once_and_rounded(rank):
    rank(0)
    module = Tied()
    found = exported_tensors(module, torch.bfloat16)
    assert list(found) == ["embedding.weight"]
    assert torch.equal(found["embedding.weight"], module.embedding.weight.detach().to(torch.bfloat16))
    assert list(adapter_tensors(module, torch.float32)) == ["embedding.weight"]


def test_the_others_take_part_and_hold_nothing(rank):
    rank(1)
    module, asked = Tied(), []
    assert exported_tensors(module, torch.float32) == {}
    assert adapter_tensors(module, torch.float32) == {}
    assert as_in_checkpoints(module, {}) == {}

    def named():
        for name in ("a", "b"):
            asked.append(name)
            yield name, torch.zeros(1)

    assert gathered_by_first(named(), torch.float32) == {}
    assert asked == ["a", "b"]

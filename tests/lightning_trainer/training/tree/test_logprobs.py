import pytest
import torch

from lightning_trainer.training.tree.logprobs import PairLogProbs

pytestmark = pytest.mark.torch


def test_pairs_are_log_softmax_with_its_gradient():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(300, 50, generator=generator, requires_grad=True)
    rows = torch.tensor([0, 0, 0, 255, 256, 299])  # one row with three targets; both sides of a block's end
    targets = torch.tensor([4, 5, 49, 0, 7, 7])
    upstream = torch.randn(6, generator=generator)
    ours = PairLogProbs.apply(logits, rows, targets)
    theirs = logits.log_softmax(-1)[rows, targets]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    torch.testing.assert_close(
        torch.autograd.grad(ours, logits, upstream), torch.autograd.grad(theirs, logits, upstream), rtol=0, atol=1e-6
    )


def test_bfloat16_logits_give_float32_logprobs():
    logits = torch.randn(10, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    rows = torch.arange(10)
    ours = PairLogProbs.apply(logits, rows, rows)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, logits.float().log_softmax(-1)[rows, rows], rtol=0, atol=1e-5)

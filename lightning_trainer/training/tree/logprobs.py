"""Log-probabilities of (row, token) pairs of a matrix of logits, without a second matrix in the forward pass.

A node of the tree that several samples continue differently is one row with several targets. A row was sampled from the
softmax of its logits or, if ``DrawnRows`` says so, from what sampling parameters made of them.
"""

from typing import Any

import torch

from lightning_trainer.training.tree.drawn import DrawnRows

_ROWS = 256
"""Rows that are processed in float32 at a time."""


class PairLogProbs(torch.autograd.Function):
    """``logprobs_P = log_softmax(logits_RV)[rows_P, targets_P]`` in float32, nats. The pairs must be distinct.

    Legend: ``R`` rows, ``V`` vocabulary, ``P`` pairs.
    """

    @staticmethod
    def forward(ctx: Any, logits_RV: torch.Tensor, rows_P: torch.Tensor, targets_P: torch.Tensor) -> torch.Tensor:
        normalizer_R = torch.empty(logits_RV.shape[0], dtype=torch.float32, device=logits_RV.device)
        for block in _blocks(len(normalizer_R)):
            normalizer_R[block] = torch.logsumexp(logits_RV[block].float(), dim=-1)
        ctx.save_for_backward(logits_RV, normalizer_R, rows_P, targets_P)
        return logits_RV[rows_P, targets_P].float() - normalizer_R[rows_P]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        logits_RV, normalizer_R, rows_P, targets_P = ctx.saved_tensors
        gradient_P = gradients[0].float()
        total_R = torch.zeros_like(normalizer_R).index_add_(0, rows_P, gradient_P)
        gradient_RV = torch.empty_like(logits_RV)
        for block in _blocks(len(normalizer_R)):
            probabilities = (logits_RV[block].float() - normalizer_R[block, None]).exp_()
            gradient_RV[block] = probabilities.mul_(-total_R[block, None])
        gradient_RV[rows_P, targets_P] += gradient_P.to(gradient_RV.dtype)
        return gradient_RV, None, None


class DrawnLogProbs(torch.autograd.Function):
    """``log q`` of the pairs, in float32, nats: ``PairLogProbs`` for rows that were sampled from something else."""

    @staticmethod
    def forward(
        ctx: Any, logits_RV: torch.Tensor, rows_P: torch.Tensor, targets_P: torch.Tensor, drawn: DrawnRows
    ) -> torch.Tensor:
        normalizer_R = torch.empty(logits_RV.shape[0], dtype=torch.float32, device=logits_RV.device)
        logprobs_P = torch.empty(len(rows_P), dtype=torch.float32, device=logits_RV.device)
        for block in drawn.blocks():
            scores_BV = drawn.scores(logits_RV, block).values_BV
            normalizer_R[block] = torch.logsumexp(scores_BV, dim=-1)
            pairs = _pairs_of(block, rows_P)
            logprobs_P[pairs] = scores_BV[rows_P[pairs] - block.start, targets_P[pairs]] - normalizer_R[rows_P[pairs]]
        ctx.save_for_backward(logits_RV, normalizer_R, rows_P, targets_P)
        ctx.drawn = drawn
        return logprobs_P

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        logits_RV, normalizer_R, rows_P, targets_P = ctx.saved_tensors
        gradient_P = gradients[0].float()
        total_R = torch.zeros_like(normalizer_R).index_add_(0, rows_P, gradient_P)
        gradient_RV = torch.empty_like(logits_RV)
        for block in ctx.drawn.blocks():
            scores = ctx.drawn.scores(logits_RV, block)
            gradient_BV = scores.values_BV.sub_(normalizer_R[block, None]).exp_().mul_(-total_R[block, None])
            pairs = _pairs_of(block, rows_P)
            gradient_BV[rows_P[pairs] - block.start, targets_P[pairs]] += gradient_P[pairs]
            gradient_RV[block] = scores.to_logits(gradient_BV)
        return gradient_RV, None, None, None


class DrawnEntropy(torch.autograd.Function):
    """``H_R``, the entropy of what each row was sampled from, in float32, nats."""

    @staticmethod
    def forward(ctx: Any, logits_RV: torch.Tensor, drawn: DrawnRows) -> torch.Tensor:
        entropy_R = torch.empty(logits_RV.shape[0], dtype=torch.float32, device=logits_RV.device)
        for block in drawn.blocks():
            logprobs_BV = drawn.scores(logits_RV, block).values_BV.log_softmax(-1)
            entropy_R[block] = -_expected(logprobs_BV.exp(), logprobs_BV).sum(-1)
        ctx.save_for_backward(logits_RV, entropy_R)
        ctx.drawn = drawn
        return entropy_R

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        logits_RV, entropy_R = ctx.saved_tensors
        gradient_RV = torch.empty_like(logits_RV)
        for block in ctx.drawn.blocks():
            scores = ctx.drawn.scores(logits_RV, block)
            logprobs_BV = scores.values_BV.log_softmax(-1)
            # dH/dy = -q (log q + H)
            gradient_BV = _expected(logprobs_BV.exp(), logprobs_BV.add_(entropy_R[block, None]))
            gradient_RV[block] = scores.to_logits(gradient_BV.mul_(-gradients[0][block, None]))
        return gradient_RV, None


def drawn_sum_pi_squared(logits_RV: torch.Tensor, drawn: DrawnRows) -> torch.Tensor:
    """Return the sum of ``q^2`` of each row, ``[R]`` float32; without a gradient."""
    with torch.no_grad():
        return torch.cat([drawn.scores(logits_RV, b).values_BV.softmax(-1).square_().sum(-1) for b in drawn.blocks()])


def _expected(probabilities: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return ``q * values``, with 0 wherever ``q`` is 0, even if the value is infinite."""
    return torch.where(probabilities > 0, probabilities * values, 0.0)


def _pairs_of(block: slice, rows_P: torch.Tensor) -> torch.Tensor:
    return ((rows_P >= block.start) & (rows_P < block.stop)).nonzero()[:, 0]


def _blocks(rows: int) -> list[slice]:
    return [slice(start, min(start + _ROWS, rows)) for start in range(0, rows, _ROWS)]

"""Log-probabilities of (row, token) pairs of a matrix of logits, without a second matrix in the forward pass.

A node of the tree that several samples continue differently is one row with several targets.
"""

from typing import Any

import torch

_ROWS = 256
"""Rows that are worked on in float32 at a time."""


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


def _blocks(rows: int) -> list[slice]:
    return [slice(start, min(start + _ROWS, rows)) for start in range(0, rows, _ROWS)]

"""log q, its entropy and their gradients, against formulas written plainly and PyTorch's own autograd."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_trainer.sampling import Shaping, pattern_of
from lightning_trainer.training.tree.drawn import Draw, DrawnRows
from lightning_trainer.training.tree.logprobs import DrawnEntropy, DrawnLogProbs, PairLogProbs, drawn_sum_pi_squared

pytestmark = pytest.mark.torch

_WIDTH = 40


def _plain(logits_RV: torch.Tensor, drawn: DrawnRows, left: dict[int, list[int]]) -> torch.Tensor:
    """Row by row and entry by entry, as ``sampling.py`` says it; minus infinity outside."""
    rows = []
    for row, logits_V in enumerate(logits_RV.float()):
        draw, scores = drawn.draws.get(row), list(logits_V)
        if draw is not None and draw.shaping is not None:
            before, said = list(draw.before), list(draw.before[draw.prompt :])
            for token, bias in draw.shaping.logit_bias:
                scores[token] = scores[token] + bias
            for token in set(before):
                penalty = draw.shaping.repetition_penalty
                scores[token] = scores[token] / penalty if scores[token] > 0 else scores[token] * penalty
            for token in set(said):
                scores[token] = scores[token] - draw.shaping.frequency_penalty * said.count(token)
                scores[token] = scores[token] - draw.shaping.presence_penalty
        kept = left.get(row, range(len(scores)))
        outside = torch.tensor([token not in kept for token in range(len(scores))])
        rows.append((torch.stack(scores) / drawn.temperature_R[row]).masked_fill(outside, -torch.inf))
    return torch.stack(rows).log_softmax(-1)


def _case(seed: int, rows: int = 9) -> tuple[torch.Tensor, DrawnRows, dict[int, list[int]], list[list[int]]]:
    """Logits, what was drawn from them, the ids that were left, and (row, token) pairs."""
    source = random.Random(seed)
    torch.manual_seed(seed)
    logits_RV = 3 * torch.randn(rows, _WIDTH)
    draws, left, pairs = {}, {}, []
    for row in range(rows):
        kept = sorted(source.sample(range(_WIDTH), source.choice([1, 2, 7, 20, _WIDTH - 1, _WIDTH])))
        pairs += [[row, token] for token in source.sample(kept, min(len(kept), source.choice([0, 1, 3])))]
        if source.random() < 0.2:
            pairs = [pair for pair in pairs if pair[0] != row] + [[row, 0]]
            continue
        shaping = Shaping(
            tuple((token, source.uniform(-4, 4)) for token in sorted(source.sample(range(_WIDTH), 3))),
            source.choice([0.0, 0.6]),
            source.choice([0.0, -0.5, 1.0]),
            source.choice([1.0, 1.5, 0.7]),
        )
        before = np.array([source.randrange(_WIDTH) for _ in range(source.randint(1, 30))])
        whole = len(kept) == _WIDTH
        if not whole:
            left[row] = kept
        draws[row] = Draw(
            source.choice([None, shaping]),
            None if whole else pattern_of(kept, _WIDTH),
            _WIDTH,
            before,
            source.randint(0, len(before)),
        )
    temperature_R = torch.tensor([source.choice([1.0, 0.3, 1.7]) for _ in range(rows)])
    return logits_RV, DrawnRows(temperature_R, draws), left, pairs or [[0, left.get(0, [0])[0]]]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_log_q_and_its_gradient_are_those_of_the_plain_formula(seed: int) -> None:
    logits_RV, drawn, left, pairs = _case(seed)
    rows_P, targets_P = torch.tensor(pairs).T
    logits_RV.requires_grad_()
    upstream = torch.randn(len(pairs))
    ours = DrawnLogProbs.apply(logits_RV, rows_P, targets_P, drawn)
    theirs = _plain(logits_RV, drawn, left)[rows_P, targets_P]
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        torch.autograd.grad(ours, logits_RV, upstream),
        torch.autograd.grad(theirs, logits_RV, upstream),
        rtol=1e-5,
        atol=1e-5,
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_entropy_and_squares_are_those_of_q(seed: int) -> None:
    logits_RV, drawn, left, _ = _case(seed)
    logits_RV.requires_grad_()
    upstream = torch.randn(len(logits_RV))
    logq = _plain(logits_RV, drawn, left)
    theirs = -torch.where(logq.exp() > 0, logq.exp() * logq.clamp(min=-1e4), 0.0).sum(-1)
    ours = DrawnEntropy.apply(logits_RV, drawn)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        torch.autograd.grad(ours, logits_RV, upstream),
        torch.autograd.grad(theirs, logits_RV, upstream),
        rtol=1e-5,
        atol=1e-5,
    )
    torch.testing.assert_close(drawn_sum_pi_squared(logits_RV, drawn), logq.exp().square().sum(-1).detach())


def test_rows_of_no_draw_are_plain_rows_over_many_blocks():
    torch.manual_seed(0)
    logits = torch.randn(200, 50, requires_grad=True)
    rows, targets = torch.arange(200), torch.randint(50, (200,))
    drawn = DrawnRows(torch.ones(200))
    found = [PairLogProbs.apply(logits, rows, targets), DrawnLogProbs.apply(logits, rows, targets, drawn)]
    torch.testing.assert_close(*found, rtol=0, atol=1e-6)
    gradients = [torch.autograd.grad(values.sum(), logits)[0] for values in found]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-6)


def test_logits_are_left_as_they_are_and_bfloat16_gives_float32():
    logits, drawn, left, pairs = _case(3)
    rounded = logits.bfloat16()
    before = rounded.clone()
    rows, targets = torch.tensor(pairs).T
    ours = DrawnLogProbs.apply(rounded, rows, targets, drawn)
    assert ours.dtype == torch.float32
    assert torch.equal(rounded, before)
    torch.testing.assert_close(ours, _plain(before, drawn, left)[rows, targets], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("entries", [[3], [0, 1, 2, 30], list(range(0, 40, 2)), [i for i in range(40) if i != 7]])
def test_the_three_forms_of_a_pattern_leave_the_same_entries_of_a_wider_or_narrower_head(entries):
    draw = Draw(None, pattern_of(entries, 40), 40, np.zeros(1, np.int64), 1)
    for width in (40, 48, 35):
        assert [i for i, out in enumerate(draw.outside(width)) if not out] == [i for i in entries if i < width]

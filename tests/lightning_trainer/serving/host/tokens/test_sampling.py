"""Inversion samples the distribution that it is given, to the last entry."""

import math

import pytest
import torch

from lightning_trainer.serving.host.patches.inverse_sampling import sample_by_inversion

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def seed():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.mark.parametrize("vocabulary", [5, 256, 700])
def test_frequencies_are_the_probabilities(vocabulary):
    logits = torch.randn(vocabulary) * 2
    draws = 20_000
    counts = torch.bincount(sample_by_inversion(logits.expand(draws, -1)), minlength=vocabulary)
    expected = logits.double().softmax(-1) * draws
    likely = expected > 5
    chi_square = ((counts[likely] - expected[likely]) ** 2 / expected[likely]).sum()
    degrees = int(likely.sum()) - 1
    assert chi_square < degrees + 5 * (2 * degrees) ** 0.5


def test_rows_are_drawn_from_their_own_distributions():
    logits = torch.full((300, 300), -torch.inf)
    logits.fill_diagonal_(0.0)
    assert sample_by_inversion(logits).tolist() == list(range(300))


def test_masked_entries_are_never_drawn():
    logits = torch.full((5_000, 1000), -torch.inf)
    logits[:, [255, 256, 999]] = torch.tensor([0.0, -3.0, -12.0])
    assert set(sample_by_inversion(logits).unique().tolist()) <= {255, 256, 999}


@pytest.mark.parametrize("draw", [0.0, 1 - 2**-53])
@pytest.mark.parametrize("only", [0, 255, 256, 511, 600])
def test_the_ends_of_the_unit_interval_stay_inside_the_distribution(monkeypatch, draw, only):
    monkeypatch.setattr(torch, "rand", lambda rows, columns, dtype: torch.full((rows, columns), draw, dtype=dtype))
    logits = torch.full((1, 601), -torch.inf)
    logits[0, only] = 1.0
    assert sample_by_inversion(logits).tolist() == [only]


def test_small_probabilities_are_not_rounded_away():
    logits = torch.zeros(1, 50_000)
    logits[0, 0] = 15.0
    others = int((sample_by_inversion(logits.expand(1000, -1)) != 0).sum())
    expected = 1000 * 49_999 / (49_999 + math.exp(15))
    assert abs(others - expected) < 5 * expected**0.5


@pytest.mark.parametrize("vocabulary", [5, 256, 700])
@pytest.mark.parametrize("value", [-torch.inf, torch.nan])
def test_a_row_that_leaves_nothing_gives_the_first_entry_as_vllms_formula_does(vocabulary, value):
    logits = torch.full((3, vocabulary), value)
    logits[1] = -torch.inf
    logits[1, vocabulary - 1] = 0.0
    probabilities = logits.softmax(dim=-1)
    vllms = (probabilities / torch.ones_like(probabilities)).argmax(dim=-1)
    assert sample_by_inversion(logits).tolist() == vllms.tolist() == [0, vocabulary - 1, 0]

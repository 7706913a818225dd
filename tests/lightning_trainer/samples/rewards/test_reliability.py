"""Rates, intervals and the correction of a judge, by numbers worked out by hand."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_trainer.samples.rewards.reliability import Correction, Pair, correction, reliability, wilson
from lightning_trainer.samples.rewards.reward_table import read_rewards


def pairs(true_positives, false_negatives, false_positives, true_negatives):
    return [
        *[Pair(1.0, 1.0)] * true_positives,
        *[Pair(0.0, 1.0)] * false_negatives,
        *[Pair(1.0, 0.0)] * false_positives,
        *[Pair(0.0, 0.0)] * true_negatives,
    ]


def test_wilsons_interval_by_hand():
    # 8 of 10: center (0.8 + 3.8415/20) / (1 + 3.8415/10) = 0.7167, half 0.2266 (Wilson 1927, z = 1.96).
    found = wilson(0.8, 10)
    assert (found.low, found.high) == (pytest.approx(0.4902, abs=5e-4), pytest.approx(0.9433, abs=5e-4))
    assert (wilson(0.0, 0).low, wilson(0.0, 0).high) == (0.0, 1.0)


def test_rates_are_counted_from_the_side_of_the_truth():
    found = reliability("j", pairs(90, 10, 30, 70))
    assert found.false_positives is not None
    assert found.false_negatives is not None
    assert (found.false_positives.value, found.false_negatives.value) == (0.3, pytest.approx(0.1))
    assert found.informedness is not None
    assert found.informedness.value == pytest.approx(0.6)
    assert found.informedness.low < 0.6 < found.informedness.high


def test_the_corrected_reward_is_right_on_average_whatever_the_rates():
    known = reliability("j", pairs(80, 20, 30, 70))
    fix = correction(known, 0.05)
    right = [fix(pair.judged) / fix.shrunk for pair in pairs(80, 20, 0, 0)]
    wrong = [fix(pair.judged) / fix.shrunk for pair in pairs(0, 0, 30, 70)]
    assert math.fsum(right) / 100 == pytest.approx(1.0)
    assert math.fsum(wrong) / 100 == pytest.approx(0.0)
    assert fix(1.0) - fix(0.0) == pytest.approx(fix.shrunk / 0.5)


def test_a_judge_of_which_less_is_known_weighs_less():
    few, many = (correction(reliability("j", pairs(9 * n, n, n, 9 * n)), 0.05) for n in (2, 200))
    assert few.refused is many.refused is None
    assert few.shrunk < many.shrunk < 1


def test_a_judge_with_hundreds_of_labels_has_nearly_the_weight_that_was_written():
    fix = correction(reliability("j", pairs(140, 60, 60, 140)), 0.05)
    # Wilson's interval of 60 in 200 is 0.2408 to 0.3669, so v = 2 (0.1261 / 3.92)^2 = 0.00207; 0.16 / (0.16 + v).
    assert fix.shrunk == pytest.approx(0.9872, abs=2e-4)
    # Else a reward of 0.3 next to it would outweigh 0.4 more right answers, as it does without correction.
    assert 0.4 * (fix(1.0) - fix(0.0)) * (1 - 0.3 - 0.3) > 0.3


def test_a_judge_that_errs_at_thirty_percent_needs_some_hundred_labels_of_each_kind():
    """As docs/rewards.md says, with the default ``floor``."""
    enough, few = (reliability("j", pairs(7 * n, 3 * n, 3 * n, 7 * n)) for n in (10, 8))
    assert correction(enough, 0.2).shrunk == pytest.approx(0.98, abs=0.005)
    assert "by as little as 0.18, less than floor = 0.2" in (correction(few, 0.2).refused or "")


@pytest.mark.parametrize(
    ("known", "sentence"),
    [
        (pairs(5, 5, 5, 5), "it may tell right from wrong by as little as -0.53, less than floor = 0.2"),
        (pairs(3, 0, 0, 3), "less than floor = 0.2; label more attempts"),
        (pairs(5, 5, 0, 0), "of the 10 attempts whose right reward is known none is wrong; label some of both"),
        ([Pair(7.0, 1.0), Pair(0.0, 0.0)], "it gives scores beyond 0 and 1; return numbers from 0 to 1"),
        ([Pair(1.0, 0.5), Pair(0.0, 0.0)], "the rewards that it is checked by are not all 0 or 1"),
        ([], "of the 0 attempts whose right reward is known"),
    ],
)
def test_a_judge_that_cannot_be_corrected_is_refused_with_a_sentence(known, sentence):
    refused = correction(reliability("helpful", known), 0.2).refused
    assert refused is not None
    assert sentence in refused


def test_rank_agreement_by_hand():
    # 1 2 3 4 ... against the same with one swap of neighbors: 44 of 45 pairs agree, tau = 43/45.
    judged = [1, 2, 3, 4, 5, 6, 7, 8, 10, 9]
    found = reliability("j", [Pair(one / 10, place / 10) for place, one in enumerate(judged, start=1)]).rank_agreement
    assert found is not None
    assert found.value == pytest.approx(43 / 45)
    assert found.low < found.value < found.high <= 1
    assert reliability("j", pairs(10, 0, 0, 0)).rank_agreement is None, "all have one value"


@pytest.mark.long
def test_rho_is_found_within_three_points_of_two_hundred_labels_each():
    generator, missed = random.Random(5), []
    for _ in range(31):
        said = [(generator.random() < (0.8 if right else 0.2), right) for right in [1] * 200 + [0] * 200]
        found = reliability("j", [Pair(float(judged), float(right)) for judged, right in said])
        assert found.false_positives is not None
        missed.append(abs(found.false_positives.value - 0.2))
        assert found.false_positives.low <= found.false_positives.value <= found.false_positives.high
    assert sorted(missed)[15] < 0.03


@given(st.floats(0, 1), st.integers(1, 10_000))
def test_intervals_hold_what_they_are_of(mean, count):
    found = wilson(mean, count)
    assert 0 <= found.low <= mean + 1e-12
    assert mean - 1e-12 <= found.high <= 1


def test_rewards_are_corrected_and_those_of_a_refused_judge_are_missing(make_evaluation, make_attempt):
    by = {"name": "helpful", "judge": "helpful"}
    given_to = [make_evaluation(1.0, "a1", **by), make_evaluation(0.0, "a2", **by)]
    attempts = {one.attempt_id: one for one in (make_attempt("a1"), make_attempt("a2"))}
    fixed = read_rewards(
        given_to, [], attempts, {"helpful": 2.0}, corrections={"helpful": Correction(0.3, 0.2, shrunk=0.5)}
    )
    assert fixed.of_attempts == {"a1": pytest.approx(2 * 0.5 * 0.7 / 0.5), "a2": pytest.approx(-2 * 0.5 * 0.3 / 0.5)}
    refused = read_rewards(given_to, [], attempts, "helpful", corrections={"helpful": Correction(refused="too bad")})
    assert (refused.of_attempts, refused.problems) == ({}, ("too bad",))


@pytest.mark.parametrize("fix", [Correction(0.3, 0.3), Correction(refused="too bad")])
def test_what_a_person_gave_under_a_judges_name_counts_as_given(make_evaluation, make_attempt, fix):
    verdict = make_evaluation(0.0, name="helpful", judge="helpful", time_ns=50)
    label = make_evaluation(1.0, name="helpful", source="reviewer", time_ns=60)
    read = read_rewards([verdict, label], [], {"a1": make_attempt()}, "helpful", corrections={"helpful": fix})
    assert read.of_attempts == {"a1": 1.0}

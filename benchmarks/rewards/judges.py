"""A judge that errs at known rates, corrected with the help of labels."""

import random
from typing import NamedTuple

from lightning_trainer.samples.rewards.reliability import Pair, correction, reliability

_FORMAT = 0.5


class Noise(NamedTuple):
    """The result of one run."""

    rates: float
    """Error of the two estimated rates, their mean."""
    plain: float
    """How far the mean of the whole reward is from the right one."""
    corrected: float


def noisy(rate: float, *, labels: int, attempts: int, seed: int) -> Noise:
    """Judge attempts, 60 % of them right; the judge errs at ``rate`` on right ones, and half as often on wrong ones."""
    generator = random.Random(seed)
    false_negative, false_positive = rate, rate / 2

    def judged(right: float) -> float:
        wrong = generator.random() < (false_negative if right else false_positive)
        return 1 - right if wrong else right

    pairs = [Pair(judged(right), right) for right in (1.0, 0.0) for _ in range(labels)]
    known = reliability("judge", pairs)
    fix = correction(known, 0.05)
    assert known.false_positives is not None
    assert known.false_negatives is not None
    assert fix.refused is None
    off = (abs(known.false_positives.value - false_positive) + abs(known.false_negatives.value - false_negative)) / 2
    right_sum = plain_sum = fixed_sum = 0.0
    for _ in range(attempts):
        right = float(generator.random() < 0.6)
        formatted = _FORMAT * float(generator.random() < 0.5)
        said = judged(right)
        right_sum += right + formatted
        plain_sum += said + formatted
        fixed_sum += fix(said) + formatted
    return Noise(off, abs(plain_sum - right_sum) / attempts, abs(fixed_sum - right_sum) / attempts)

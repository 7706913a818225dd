"""How often a judge is wrong, by the attempts whose right reward is known, and the correction that follows from it.

Rates: ``rho0`` is the mean of what the judge gives where 0 is right (false positives, for a judge of yes and no), and
``rho1`` is 1 minus the mean of what it gives where 1 is right (false negatives).

Correction: ``(r - rho0) / (1 - rho0 - rho1)``, whose mean is the right reward whatever the rates are (Cai et al.,
"Reinforcement Learning with Verifiable yet Noisy Rewards under Imperfect Verifiers", arXiv 2510.00915, the backward
correction). It is affine, so a judge of graded scores from 0 to 1 is corrected by it as well.

Intervals are 95 %: of rates by Wilson (1927), which for means of values from 0 to 1 are too wide rather than too
narrow; of Kendall's tau-b by Fisher's z with the variance of Fieller, Hartley and Pearson (1957).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_Z = 1.959964
_FEWEST_FOR_TAU, _MOST_FOR_TAU = 10, 2000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with the interval that it lies in, with a confidence of 95 %."""

    value: float
    low: float
    high: float
    count: int
    """What it was estimated from."""

    @property
    def variance(self) -> float:
        """Variance of a normal distribution that has this interval."""
        return ((self.high - self.low) / (2 * _Z)) ** 2


@dataclass(frozen=True, slots=True)
class Pair:
    """One attempt that the judge has judged and whose right reward is known."""

    judged: float
    right: float


@dataclass(frozen=True, slots=True)
class Reliability:
    """What is known of one judge."""

    name: str
    labels: int
    """Attempts that it judged and whose right reward is known."""
    false_positives: Estimate | None
    """``rho0``; None if no right reward is 0, or unless ``in_range`` and ``of_two``."""
    false_negatives: Estimate | None
    """``rho1``; None if no right reward is 1, or unless ``in_range`` and ``of_two``."""
    rank_agreement: Estimate | None
    """Kendall's tau-b, from -1 to 1; None for fewer than ten attempts, or if all were judged alike or all right rewards
    are equal."""
    in_range: bool
    """Whether all rewards that the judge gave are from 0 to 1."""
    of_two: bool
    """Whether all right rewards are 0 or 1."""

    @property
    def informedness(self) -> Estimate | None:
        """``1 - rho0 - rho1``: how well the judge tells right from wrong; 0 is a coin toss.

        The interval is that of the worst case of both rates.
        """
        wrong, missed = self.false_positives, self.false_negatives
        if wrong is None or missed is None:
            return None
        return Estimate(
            1 - wrong.value - missed.value, 1 - wrong.high - missed.high, 1 - wrong.low - missed.low, self.labels
        )


@dataclass(frozen=True, slots=True)
class Correction:
    """What is done to a judge's rewards before they are trained with."""

    rho0: float = 0.0
    rho1: float = 0.0
    shrunk: float = 1.0
    """From 0 to 1: what the weight is multiplied by, since the rates are not known exactly."""
    refused: str | None = None
    """Why its rewards count as missing, as a sentence; None: they count."""

    def __call__(self, value: float) -> float:
        """Return the corrected reward."""
        return self.shrunk * (value - self.rho0) / (1 - self.rho0 - self.rho1)


def wilson(mean: float, count: int) -> Estimate:
    """Return a rate with its interval, within 0 to 1; if nothing was counted, the interval is all of 0 to 1."""
    if count == 0:
        return Estimate(0.5, 0.0, 1.0, 0)
    spread = _Z * _Z / count
    center = (mean + spread / 2) / (1 + spread)
    half = _Z * math.sqrt(mean * (1 - mean) / count + spread / (4 * count)) / (1 + spread)
    return Estimate(mean, max(0.0, center - half), min(1.0, center + half), count)


def reliability(name: str, pairs: Sequence[Pair]) -> Reliability:
    """Estimate how far a judge can be believed."""
    in_range = all(0 <= pair.judged <= 1 for pair in pairs)
    of_two = all(pair.right in (0.0, 1.0) for pair in pairs)
    where = {truth: [pair.judged for pair in pairs if pair.right == truth] for truth in (0.0, 1.0)}
    usable = in_range and of_two
    return Reliability(
        name=name,
        labels=len(pairs),
        false_positives=_rate(where[0.0], wrong_is_one=True) if usable else None,
        false_negatives=_rate(where[1.0], wrong_is_one=False) if usable else None,
        rank_agreement=_kendall(pairs),
        in_range=in_range,
        of_two=of_two,
    )


def correction(known: Reliability, floor: float) -> Correction:
    """Return how a judge is corrected, or why its rewards must not be trained with.

    The weight is multiplied by ``J^2 / (J^2 + v)``, with the informedness ``J`` and the variance ``v`` of its estimate.
    In all, rewards are multiplied by Tikhonov's regularized inverse ``J / (J^2 + v)`` instead of ``1 / J``: a judge
    about which little is known counts less, and one with hundreds of labels nearly its full weight.

    Args:
        floor: the least informedness that the judge must have for certain: the low end of its interval.
    """
    judge = f"judge {known.name} is not corrected and its reward counts as missing"
    if not known.in_range:
        return Correction(refused=f"{judge}: it gives scores beyond 0 and 1; return numbers from 0 to 1")
    if not known.of_two:
        return Correction(refused=f"{judge}: the rewards that it is checked by are not all 0 or 1")
    informed = known.informedness
    if informed is None or known.false_positives is None or known.false_negatives is None:
        return Correction(
            refused=f"{judge}: of the {known.labels} attempts whose right reward is known none is "
            f"{'right' if known.false_negatives is None else 'wrong'}; label some of both"
        )
    if informed.low < floor:
        rates = (
            f"false positives {_said(known.false_positives)}, false negatives {_said(known.false_negatives)} of "
            f"{known.labels} labels"
        )
        return Correction(
            refused=f"{judge}: {rates}, so it may tell right from wrong by as little as {informed.low:.2f}, less than "
            f"floor = {floor:g}; label more attempts, or use a better judge"
        )
    certain = informed.value**2
    spread = known.false_positives.variance + known.false_negatives.variance
    return Correction(known.false_positives.value, known.false_negatives.value, certain / (certain + spread))


def _rate(judged: Sequence[float], *, wrong_is_one: bool) -> Estimate | None:
    if not judged:
        return None
    mean = math.fsum(judged) / len(judged)
    return wilson(mean if wrong_is_one else 1 - mean, len(judged))


def _kendall(pairs: Sequence[Pair]) -> Estimate | None:
    """Return Kendall's tau-b: concordant minus discordant pairs over the geometric mean of those untied in either."""
    pairs = pairs[:_MOST_FOR_TAU]
    count = len(pairs)
    if count < _FEWEST_FOR_TAU:
        return None
    score = untied_judged = untied_right = 0
    for position, one in enumerate(pairs):
        for other in pairs[:position]:
            judged, right = _sign(one.judged - other.judged), _sign(one.right - other.right)
            score += judged * right
            untied_judged += judged != 0
            untied_right += right != 0
    if not untied_judged or not untied_right:
        return None
    tau = score / math.sqrt(untied_judged * untied_right)
    z, spread = math.atanh(max(-0.999999, min(0.999999, tau))), _Z * math.sqrt(0.437 / (count - 4))
    return Estimate(tau, math.tanh(z - spread), math.tanh(z + spread), count)


def _sign(difference: float) -> int:
    return (difference > 0) - (difference < 0)


def _said(rate: Estimate) -> str:
    return f"{rate.value:.2f} ({rate.low:.2f} to {rate.high:.2f})"

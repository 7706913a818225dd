"""Before versus after on the same tasks: only the tasks whose outcome changed carry evidence.

Sources: test, Q. McNemar, Psychometrika 12 (1947) 153-157, in its exact binomial form; interval, D. G. Bonett and
R. M. Price, Adjusted Wald confidence interval for a difference of binomial proportions based on paired data, Journal
of Educational and Behavioral Statistics 37 (2012) 479-488. For any other scores: Student's interval of the mean
difference, its quantile from M. Abramowitz and I. A. Stegun, Handbook of Mathematical Functions (1964), 26.7.5.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, sqrt
from statistics import fmean, stdev

# Confidence interval of a share of successes.
#
# The score interval stays inside [0, 1] and is honest at the ends: 96 of 96 is not "exactly 100 %". Source: E. B.
# Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927) 209-212.

Z_95 = 1.959963984540054
"""Two-sided 95 % quantile of the normal distribution."""
_FEWEST = 4
"""Fewest values whose mean gets an interval: with fewer it says little, and Student's quantile is inexact."""


def wilson_interval(successes: int, n: int, z: float = Z_95) -> tuple[float, float]:
    """Return the lower and upper bound of the share, in [0, 1].

    Raises:
        ValueError: ``n`` is not positive, or successes are not in [0, n].
    """
    if n <= 0 or not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}: there must be a trial, and no more successes than trials")
    share = successes / n
    center = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # At the ends the bound is exactly 0 or 1; rounding would leave it slightly off.
    low = 0.0 if successes == 0 else max(0.0, center - half)
    high = 1.0 if successes == n else min(1.0, center + half)
    return low, high


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Change of the share of successes, after minus before, over ``n`` tasks tried both times."""

    n: int
    gained: int
    """Tasks that failed before and succeed after."""
    lost: int
    """Tasks that succeeded before and fail after."""
    difference: float
    """In [-1, 1]."""
    interval: tuple[float, float]
    """95 %."""
    p_value: float
    """Exact two-sided McNemar: how likely a change at least this lopsided is if training did nothing."""


def paired_difference(before: Sequence[bool], after: Sequence[bool]) -> PairedDifference:
    """Compare outcomes of the same tasks in the same order.

    Raises:
        ValueError: the lengths differ, or there is no task.
    """
    n = len(before)
    if n == 0 or len(after) != n:
        raise ValueError(f"{n} outcomes before and {len(after)} after: they must be the same tasks, one or more")
    gained = sum(1 for b, a in zip(before, after, strict=True) if a and not b)
    lost = sum(1 for b, a in zip(before, after, strict=True) if b and not a)
    share_gained, share_lost = (gained + 1) / (n + 2), (lost + 1) / (n + 2)
    center = share_gained - share_lost
    half = Z_95 * sqrt((share_gained + share_lost - center * center) / (n + 2))
    return PairedDifference(
        n=n,
        gained=gained,
        lost=lost,
        difference=(gained - lost) / n,
        interval=(max(-1.0, center - half), min(1.0, center + half)),
        p_value=_exact_mcnemar(gained, lost),
    )


@dataclass(frozen=True, slots=True)
class MeanDifference:
    """Mean change of the tasks' scores, after minus before, over ``n`` tasks tried both times."""

    n: int
    difference: float
    interval: tuple[float, float]
    """95 %."""


def mean_difference(before: Sequence[float], after: Sequence[float]) -> MeanDifference | None:
    """Compare scores of the same tasks in the same order; None if there are fewer than four tasks, or if all scores
    change by the same amount, which says nothing about the spread."""
    differences = [a - b for b, a in zip(before, after, strict=True)]
    n = len(differences)
    if n < _FEWEST or max(differences) - min(differences) < 1e-9:
        return None
    mean, half = fmean(differences), _student_95(n - 1) * stdev(differences) / sqrt(n)
    return MeanDifference(n, mean, (mean - half, mean + half))


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of a mean: Wilson's if each value is 0 or 1, else Student's; None if there are fewer
    than four values, or if all are alike and not 0 or 1, which says nothing about the spread."""
    n = len(values)
    if n < _FEWEST:
        return None
    if {*values} <= {0.0, 1.0}:
        return wilson_interval(sum(value == 1.0 for value in values), n)
    if max(values) - min(values) < 1e-9:
        return None
    mean, half = fmean(values), _student_95(n - 1) * stdev(values) / sqrt(n)
    return mean - half, mean + half


def _student_95(freedom: int) -> float:
    """Return the two-sided 95 % quantile of Student's t, within 0.2 % from 3 degrees of freedom on."""
    return Z_95 + 2.3723 / freedom + 2.8225 / freedom**2 + 2.5559 / freedom**3 + 1.5895 / freedom**4


def _exact_mcnemar(gained: int, lost: int) -> float:
    changed = gained + lost
    tail = sum(comb(changed, k) for k in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**changed)

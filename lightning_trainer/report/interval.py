"""Confidence interval of a share of successes.

The score interval stays inside [0, 1] and is honest at the ends: 96 of 96 is not "exactly 100 %".
Source: E. B. Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927) 209-212.
"""

from math import sqrt

Z_95 = 1.959963984540054
"""Two-sided 95 % quantile of the normal distribution."""


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
    # At the ends the bound is 0 or 1 exactly; rounding would leave it a hair off.
    low = 0.0 if successes == 0 else max(0.0, center - half)
    high = 1.0 if successes == n else min(1.0, center + half)
    return low, high

"""Sequential testing of whether a new version is worse than the live one, valid however often it is checked.

A confidence sequence contains the mean at all times at once, with the given confidence: unlike an interval for a fixed
sample size, it stays valid if one checks it after each observation and stops at will.

It is constructed by betting: a bet that the mean is above ``m`` multiplies the money by ``1 + bet * (x - m)`` for each
observation. If the mean is not above ``m``, the probability that the money ever reaches twenty times its start is at
most 1 in 20 (Ville's inequality); so ``m`` is excluded as soon as the money does. The money is divided over several
sizes of bets, some suited to few rollouts and some to many. Source: Waudby-Smith and Ramdas, "Estimating means of
bounded random variables by betting", Journal of the Royal Statistical Society B 86 (2024), sections 4 and B.4 (bets on
a grid).

Two versions are compared by two bets at once: that the candidate's mean is below ``m``, and that the live version's is
above. If the candidate were not worse, some ``m`` would lie between the two means, and for that ``m`` the product of
both bets is not expected to grow; so the candidate is worse once there is enough money for every ``m`` (the minimum of
such processes over a composite hypothesis is an e-process: Ramdas, Gruenwald, Vovk and Shafer, "Game-theoretic
statistics and safe anytime-valid inference", Statistical Science 38 (2023)).
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

_BETS = (0.8, 0.4, 0.2, 0.1, 0.05)
_CELLS = 64
"""Cells of the grid of means that is searched for the minimum; each cell counts with its lower bound, so the result
stays valid."""
_FOR_THE_PLACE = 0.1
"""Share of the error spent on locating the better-known mean, so that ``m`` is searched only around it."""
_STEPS = 40
"""Bisections of an interval of length 1."""
_GRID = 512
"""Values are rounded to this many steps, down for the lower bound and up for the upper one, so the bounds stay valid.
"""


@dataclass(frozen=True, slots=True)
class Bounds:
    """An interval for a mean: each side holds at all times with the required confidence."""

    mean: float
    low: float
    high: float
    count: int

    def on(self, scale: tuple[float, float]) -> "Bounds":
        """Return the interval on the scale that was given to ``counted``."""
        lowest, highest = scale
        mean, low, high = (lowest + value * (highest - lowest) for value in (self.mean, self.low, self.high))
        return Bounds(mean, low, high, self.count)


def bounds(counts: Mapping[float, int], error: float) -> Bounds:
    """Return the bounds of a mean after some observations; their order does not matter.

    Args:
        counts: the number of times each value was observed; values are from 0 to 1.
        error: the probability that one side is ever wrong.

    Raises:
        ValueError: a value is not from 0 to 1.
    """
    if (off := next((value for value in counts if not 0.0 <= value <= 1.0), None)) is not None:
        raise ValueError(f"a value of a confidence sequence is {off}; scale it to 0 to 1")
    seen = sum(counts.values())
    if not seen:
        return Bounds(0.5, 0.0, 1.0, 0)
    down = _rounded(counts, up=False)
    up = Counter({1 - value: count for value, count in _rounded(counts, up=True).items()})
    return Bounds(_mean(counts), _low(down, error), 1 - _low(up, error), seen)


def _low(counts: Mapping[float, int], error: float) -> float:
    """Return the smallest mean that is not excluded."""
    needed = math.log(1 / error)
    low, high = 0.0, 1.0
    if _money(counts, low) < needed:
        return low
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _money(counts, middle) >= needed else (low, middle)
    return low


def _money(counts: Mapping[float, int], mean: float) -> float:
    """Return the logarithm of the money after betting 1 that the mean is above ``mean``; decreasing in ``mean``."""
    return _sum_of([_wealth(counts, mean, bet) for bet in _BETS])


def counted(values: Iterable[float], scale: tuple[float, float] = (0.0, 1.0)) -> Counter[float]:
    """Return how often each value was observed, scaled to 0 to 1 and clipped."""
    low, high = scale
    return Counter(min(1.0, max(0.0, (value - low) / (high - low))) for value in values)


class Decision(StrEnum):
    """The decision on a candidate."""

    GOING_ON = "going_on"
    PROMOTED = "promoted"
    """It is not worse than the live version by more than the tolerance."""
    REFUSED = "refused"
    """It is worse."""
    STOPPED = "stopped"
    """Undecided after the maximum number of rollouts."""
    INTERRUPTED = "interrupted"
    """Nothing was decided: the candidate could not be served, or a rollback was asked for."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two versions' means with their bounds, and the decision."""

    candidate: Bounds
    live: Bounds
    decision: Decision


def compare(
    candidate: Mapping[float, int],
    live: Mapping[float, int],
    *,
    share: float,
    error: float,
    tolerance: float,
    most: int,
) -> Comparison:
    """Decide on a candidate; call it again with every new observation.

    The probability that a candidate as good as the live version is ever refused, however often this is called, is at
    most ``error``; the same holds for promoting one that is worse by more than the tolerance.

    Args:
        candidate: the number of times each reward was earned, from 0 to 1.
        live: the same for the live version, over the same time.
        share: the candidate's share of the rollouts; a wrong value costs rollouts but not validity.
        error: from 0 to 1.
        tolerance: how much worse the candidate may be.
        most: the number of the candidate's rewards after which the comparison ends undecided.
    """
    decision = decide(candidate, live, share=share, error=error, tolerance=tolerance, most=most)
    return Comparison(bounds(candidate, error / 2), bounds(live, error / 2), decision)


def decide(
    candidate: Mapping[float, int],
    live: Mapping[float, int],
    *,
    share: float,
    error: float,
    tolerance: float,
    most: int,
) -> Decision:
    """Return the decision of :func:`compare`, without the bounds, which are for display."""
    if is_below(candidate, live, share=share, error=error):
        return Decision.REFUSED
    if is_below(live, candidate, share=1 - share, error=error, by=-tolerance):
        return Decision.PROMOTED
    return Decision.STOPPED if sum(candidate.values()) >= most else Decision.GOING_ON


def is_below(
    one: Mapping[float, int], other: Mapping[float, int], *, share: float, error: float, by: float = 0.0
) -> bool:
    """Whether the mean of ``one`` is certainly below the mean of ``other`` minus ``by``.

    Args:
        share: the expected share of ``one`` in all observations, fixed in advance.
        error: the probability that this is ever wrongly true.
        by: if negative, asks whether ``one`` is certainly not above ``other`` by as much.
    """
    if not sum(one.values()) or not sum(other.values()):
        return False
    needed = math.log(1 / (error * (1 - _FOR_THE_PLACE)))
    ratio = share / (1 - share)
    small, large = (1.0, ratio) if ratio <= 1 else (1 / ratio, 1.0)  # the side with fewer observations bets more
    down, up = _rounded(one, up=True), _rounded(other, up=False)

    def money(left: float, right: float) -> float:
        """Return a lower bound of the money between two means: the winnings on ``one`` increase with the mean, those on
        ``other`` decrease. Means are clipped to 0 to 1: a bet on a mean beyond could lose more than there is."""
        lowest, highest = max(0.0, left), min(1.0, right + by)
        return _sum_of([_wealth(down, lowest, -bet * small) + _wealth(up, highest, bet * large) for bet in _BETS])

    likely = _mean(one) if share > 0.5 else _mean(other) - by
    if money(likely, likely) < needed:
        return False  # one mean without enough money is sufficient; usually no others are checked
    # If `one` were not below, either mean could be `m`, so only the surroundings of the better-known one are searched.
    of_one = sum(one.values()) >= sum(other.values())
    place = bounds(one if of_one else other, error * _FOR_THE_PLACE / 2)
    first, last = (place.low, place.high) if of_one else (place.low - by, place.high - by)
    edges = [first + (last - first) * cell / _CELLS for cell in range(_CELLS + 1)]
    return all(money(left, right) >= needed for left, right in itertools.pairwise(edges))


def _rounded(counts: Mapping[float, int], *, up: bool) -> Counter[float]:
    found: Counter[float] = Counter()
    for value, count in counts.items():
        found[(math.ceil if up else math.floor)(value * _GRID) / _GRID] += count
    return found


def _wealth(counts: Mapping[float, int], mean: float, bet: float) -> float:
    return math.fsum(count * math.log1p(bet * (value - mean)) for value, count in counts.items())


def _sum_of(logarithms: list[float]) -> float:
    """Return the logarithm of the mean of the values whose logarithms are given."""
    most = max(logarithms)
    return most + math.log(math.fsum(math.exp(one - most) for one in logarithms) / len(logarithms))


def _mean(counts: Mapping[float, int]) -> float:
    return math.fsum(value * count for value, count in counts.items()) / sum(counts.values())

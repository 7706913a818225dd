"""Whether a new version is worse than the live one, asked after every rollout and right all the same.

A confidence sequence holds the mean at all times at once, with the confidence that it was made for: one who looks after
each observation and stops at will is not misled, as would happen with an interval for a fixed number of them.

It is the betting one: who bets that the mean is above ``m`` multiplies his money by ``1 + bet * (x - m)`` each time. If
it is not, he has twenty times as much with a probability of 1 in 20 at most, ever (Ville's inequality); so ``m`` is out
as soon as he has. His money is divided over several sizes of bets, some right for few rollouts and some for many.
Source: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", Journal of the Royal
Statistical Society B 86 (2024), sections 4 and B.4 (bets on a grid).

Two versions are compared by betting against both at once: that the candidate's mean is below ``m`` and the live one's
above. Were the candidate not worse, some ``m`` would lie between the two means, and there the money of both bets
together is not expected to grow; so it is worse once there is enough money for every ``m`` (the least of such
processes over a composite hypothesis is an e-process: Ramdas, Gruenwald, Vovk and Shafer, "Game-theoretic statistics
and safe anytime-valid inference", Statistical Science 38 (2023)).
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

_BETS = (0.8, 0.4, 0.2, 0.1, 0.05)
_CELLS = 64
"""That means are divided into where a least amount is looked for; a bound of each cell is taken, so it still holds."""
_FOR_THE_PLACE = 0.1
"""Of the error: for where the mean of which more is known lies, which ``m`` has to be looked for around alone."""
_STEPS = 40
"""Halvings of an interval of 1."""
_GRID = 512
"""Values are rounded to so many steps, down for the lower bound and up for the upper one, so the bounds still hold."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where a mean lies: each side at all times with the confidence asked for."""

    mean: float
    low: float
    high: float
    count: int


def bounds(counts: Mapping[float, int], error: float) -> Bounds:
    """Return the bounds of a mean after some observations; in which order they came does not matter.

    Args:
        counts: how often each value was seen; values are from 0 to 1.
        error: of either side, at any time.

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
    """Return the least mean that is not out."""
    needed = math.log(1 / error)
    low, high = 0.0, 1.0
    if _money(counts, low) < needed:
        return low
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _money(counts, middle) >= needed else (low, middle)
    return low


def _money(counts: Mapping[float, int], mean: float) -> float:
    """Return the logarithm of what 1 has become by betting on more than ``mean``; it falls with ``mean``."""
    return _sum_of([_wealth(counts, mean, bet) for bet in _BETS])


def counted(values: Iterable[float], scale: tuple[float, float] = (0.0, 1.0)) -> Counter[float]:
    """Return how often each value was seen, on a scale from 0 to 1; what is beyond counts as the end."""
    low, high = scale
    return Counter(min(1.0, max(0.0, (value - low) / (high - low))) for value in values)


class Decision(StrEnum):
    """What becomes of a candidate."""

    GOING_ON = "going_on"
    PROMOTED = "promoted"
    """It is not worse than the live version by more than the tolerance."""
    REFUSED = "refused"
    """It is worse."""
    STOPPED = "stopped"
    """Nobody can say after the most rollouts that were allowed."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two versions' means with their bounds, and what follows."""

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
    """Decide on a candidate; ask again whenever something has come.

    A candidate that is as good as the live version is refused with a probability of ``error`` at most, however often
    this is asked, and one that is worse by more than the tolerance is promoted with as much at most.

    Args:
        candidate: how often each reward was earned, from 0 to 1.
        live: of the version that is served, in the same time.
        share: of the rollouts that are the candidate's; a wrong one costs rollouts and no validity.
        error: from 0 to 1.
        tolerance: how much worse it may be.
        most: rewards of the candidate after which it ends undecided.
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
    """Return what :func:`compare` decides, without the bounds that it shows."""
    if is_below(candidate, live, share=share, error=error):
        return Decision.REFUSED
    if is_below(live, candidate, share=1 - share, error=error, by=-tolerance):
        return Decision.PROMOTED
    return Decision.STOPPED if sum(candidate.values()) >= most else Decision.GOING_ON


def is_below(
    one: Mapping[float, int], other: Mapping[float, int], *, share: float, error: float, by: float = 0.0
) -> bool:
    """Whether the mean of one is certainly below that of the other less ``by``.

    Args:
        share: of ``one`` in both together, expected before anything was seen.
        error: how often this is said, at any time, where it is not so.
        by: a negative number asks whether it is certainly not above by as much.
    """
    if not sum(one.values()) or not sum(other.values()):
        return False
    needed = math.log(1 / (error * (1 - _FOR_THE_PLACE)))
    ratio = share / (1 - share)
    small, large = (1.0, ratio) if ratio <= 1 else (1 / ratio, 1.0)  # the larger bet is on whom there is less of
    down, up = _rounded(one, up=True), _rounded(other, up=False)

    def money(left: float, right: float) -> float:
        """The least between two means: what is won on ``one`` grows with the mean, on ``other`` it falls."""
        return _sum_of([_wealth(down, left, -bet * small) + _wealth(up, right + by, bet * large) for bet in _BETS])

    likely = _mean(one) if share > 0.5 else _mean(other) - by
    if money(likely, likely) < needed:
        return False  # there is one for which it is not enough; most often this is all there is to look at
    # Were it not below, the mean of either would do as `m`: that of which more is known is looked for where it lies.
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
    """Return the logarithm of the mean of what they are logarithms of."""
    most = max(logarithms)
    return most + math.log(math.fsum(math.exp(one - most) for one in logarithms) / len(logarithms))


def _mean(counts: Mapping[float, int]) -> float:
    return math.fsum(value * count for value, count in counts.items()) / sum(counts.values())

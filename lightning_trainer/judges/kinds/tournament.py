"""Pairings, and scores from the results of pairs (Bradley-Terry).

Source: Bradley and Terry, "Rank analysis of incomplete block designs" (1952); the fit is the minorize-maximize
iteration of Hunter, "MM algorithms for generalized Bradley-Terry models" (2004), with half a win and half a loss for
every attempt against a virtual one of average strength, so that an attempt that never loses has a finite strength.
"""

import math
from collections.abc import Mapping, Sequence, Set

Pair = tuple[int, int]
"""Two indexes, the smaller one first."""

_PRIOR = 0.5
_ITERATIONS = 1000
_CLOSE = 1e-10


def rounds_of(places: int) -> int:
    """Return the number of rounds needed for this many attempts: n log n pairs in total."""
    return math.ceil(math.log2(places)) + 1


def all_pairs(places: int) -> list[Pair]:
    """Return all pairs of this many attempts."""
    return [(one, other) for one in range(places) for other in range(one + 1, places)]


def next_round(places: int, results: Mapping[Pair, float], met: Set[Pair]) -> list[Pair]:
    """Return pairs of attempts that are about equally strong and have not met; each attempt is in one pair at most.

    Args:
        results: for each compared pair, how much the smaller index won: 1, 0, or in between.
        met: pairs that must not be compared again, with or without a result.
    """
    strength = strengths(places, results)
    left = sorted(range(places), key=lambda place: (-strength[place], place))
    pairs: list[Pair] = []
    while left:
        one = left.pop(0)
        other = next((other for other in left if _pair(one, other) not in met), None)
        if other is not None:
            left.remove(other)
            pairs.append(_pair(one, other))
    return pairs


def strengths(places: int, results: Mapping[Pair, float]) -> list[float]:
    """Return a positive strength for each attempt: ``s_i / (s_i + s_j)`` is the probability that ``i`` beats ``j``."""
    wins = [_PRIOR] * places
    games: list[dict[int, float]] = [{} for _ in range(places)]
    for (one, other), won in results.items():
        wins[one] += won
        wins[other] += 1.0 - won
        games[one][other] = games[other][one] = games[one].get(other, 0.0) + 1.0
    strength = [1.0] * places
    for _ in range(_ITERATIONS):
        fitted = [
            wins[one]
            / (
                2 * _PRIOR / (strength[one] + 1.0)
                + sum(count / (strength[one] + strength[other]) for other, count in games[one].items())
            )
            for one in range(places)
        ]
        moved = max(abs(math.log(new / old)) for new, old in zip(fitted, strength, strict=True))
        strength = fitted
        if moved < _CLOSE:
            break
    return strength


def scores(places: int, results: Mapping[Pair, float]) -> list[float | None]:
    """Return each attempt's probability of beating one of the others, from 0 to 1.

    None for an attempt outside the largest set that results connect: there is nothing to compare it with.
    """
    strength = strengths(places, results)
    known = _largest_component(places, results)
    return [
        sum(strength[one] / (strength[one] + strength[other]) for other in known if other != one) / (len(known) - 1)
        if one in known
        else None
        for one in range(places)
    ]


def _largest_component(places: int, results: Mapping[Pair, float]) -> Sequence[int]:
    """Return the largest set of attempts that results connect; empty if there are no results."""
    component = list(range(places))
    for one, other in results:
        old, new = component[other], component[one]
        component = [new if place == old else place for place in component]
    members = [[place for place in range(places) if component[place] == name] for name in set(component)]
    largest = max(members, key=lambda found: (len(found), -found[0]))
    return largest if len(largest) > 1 else ()


def _pair(one: int, other: int) -> Pair:
    return (one, other) if one < other else (other, one)

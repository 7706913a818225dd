"""Who is compared with whom, and what the results of pairs say of each (Bradley-Terry).

Source: Bradley and Terry, "Rank analysis of incomplete block designs" (1952); the fit is the minorize-maximize
iteration of Hunter, "MM algorithms for generalized Bradley-Terry models" (2004), with half a win and half a loss of
everybody against one of middling strength, so that who never loses has a finite strength.
"""

import math
from collections.abc import Mapping, Sequence

Pair = tuple[int, int]
"""Two places, the smaller one first."""

_PRIOR = 0.5
_ITERATIONS = 1000
_CLOSE = 1e-10


def rounds_of(places: int) -> int:
    """Return how many rounds tell so many apart: n log n pairs in all."""
    return math.ceil(math.log2(places)) + 1


def all_pairs(places: int) -> list[Pair]:
    return [(one, other) for one in range(places) for other in range(one + 1, places)]


def next_round(places: int, results: Mapping[Pair, float], met: set[Pair]) -> list[Pair]:
    """Return pairs of places that are about equally strong and have not met; each place is in one at most.

    Args:
        results: of each pair that was compared, how much the smaller place won: 1, 0, or in between.
        met: pairs that need not be compared again, whether or not there was a result.
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
    """Return a positive strength for each place: ``s_i / (s_i + s_j)`` is the probability that ``i`` beats ``j``."""
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
    """Return each place's probability of beating one of the others, from 0 to 1.

    None for a place that no result connects with most others: there is nothing to compare it by.
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
    """Return the places of the largest set that results connect; empty where there is no result."""
    component = list(range(places))
    for one, other in results:
        old, new = component[other], component[one]
        component = [new if place == old else place for place in component]
    members = [[place for place in range(places) if component[place] == name] for name in set(component)]
    largest = max(members, key=lambda found: (len(found), -found[0]))
    return largest if len(largest) > 1 else ()


def _pair(one: int, other: int) -> Pair:
    return (one, other) if one < other else (other, one)

"""How much each source weighs, by how often it was right when that can be told.

What a source said of an answer is compared with the answer's verified reward or, if there is none, with what the other
sources said, each by its own weight; this is repeated until the weights no longer change (truth discovery, as in Dawid
and Skene, "Maximum Likelihood Estimation of Observer Error-Rates Using the EM Algorithm", 1979, with one rate per
source). A source is never compared with itself, and one that is mostly wrong weighs nothing: what it says is not
reversed, since an attacker who knew that would only say the opposite.

Weight: the log odds of being right, which is the best weight of a vote of independent sources (Nitzan and Paroush,
"Optimal Decision Rules in Uncertain Dichotomous Choice Situations", 1982), as a multiple of that of an unknown source.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

PRIOR_RIGHT, PRIOR_WRONG = 3.0, 1.0
"""An unknown source counts as if it had been right in three of four comparisons."""
MOST = 2.0
"""Limit on a weight, in multiples of an unknown source's: no source outweighs three others."""
_BY_OTHERS = 0.5
"""Worth of a comparison with other sources, relative to one with a verified reward."""
_ROUNDS = 25
_STILL = 1e-6
_LITTLE = 0.25
"""A weight below this share of an unknown source's is next to nothing."""
_SURE_DEVIATIONS = 0.84
"""How many standard deviations above its mean a source's rate of being right must still be below one half before the
source is named: 80 % sure. In the first minutes an honest source often stands next to those that err; if this were
zero, it would be named wrongly in every third run."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """What one source says of one answer under one name; its latest word."""

    source: str
    target: str
    value: float
    """From 0 to 1."""


@dataclass(slots=True)
class Standing:
    """One source."""

    source: str
    opinions: int = 0
    right: float = 0.0
    """How much its comparisons agreed: the sum of ``1 - |difference|``, each times what the comparison is worth."""
    compared: float = 0.0
    verified: int = 0
    """Comparisons with a verified reward."""
    wrong_verified: int = 0
    """How many of these differed from the verified reward by more than 0.5."""
    trusted: bool = False

    @property
    def reliability(self) -> float:
        """Posterior mean of its rate of being right, from 0 to 1."""
        return (self.right + PRIOR_RIGHT) / (self.compared + PRIOR_RIGHT + PRIOR_WRONG)

    @property
    def weight(self) -> float:
        """From 0 to ``MOST``; 1 for an unknown source and for a trusted one."""
        if self.trusted:
            return 1.0
        rate = self.reliability
        return min(MOST, max(0.0, math.log(rate / (1 - rate)) / math.log(PRIOR_RIGHT / PRIOR_WRONG)))

    @property
    def ignored(self) -> bool:
        """Whether it weighs next to nothing."""
        return self.weight < _LITTLE

    @property
    def suspicious(self) -> bool:
        """Whether it was compared often enough to say that it is more often wrong than right.

        Its rate of being right has a beta distribution, which is judged by its mean and standard deviation.
        """
        rate = self.reliability
        deviation = math.sqrt(rate * (1 - rate) / (self.compared + PRIOR_RIGHT + PRIOR_WRONG + 1))
        return self.ignored and rate + _SURE_DEVIATIONS * deviation < 0.5


def standings(
    opinions: Iterable[Opinion], verified: Mapping[str, float], trusted: Collection[str] = ()
) -> dict[str, Standing]:
    """Return every source's standing.

    Args:
        opinions: at most one of a source on a target.
        verified: rewards that are right, from 0 to 1, by target.
        trusted: sources that weigh 1 whatever they say.
    """
    by_target: dict[str, list[Opinion]] = {}
    for one in opinions:
        by_target.setdefault(one.target, []).append(one)
    known = {one.source: Standing(one.source, trusted=one.source in trusted) for of in by_target.values() for one in of}
    for of_target in by_target.values():
        for one in of_target:
            known[one.source].opinions += 1
    weights = dict.fromkeys(known, 1.0)
    for _ in range(_ROUNDS):
        for standing in known.values():
            standing.right = standing.compared = 0.0
            standing.verified = standing.wrong_verified = 0
        for target, of_target in by_target.items():
            _compare(of_target, verified.get(target), weights, known)
        changed = max((abs(one.weight - weights[source]) for source, one in known.items()), default=0.0)
        weights = {source: one.weight for source, one in known.items()}
        if changed < _STILL:
            break
    return known


def _compare(
    of_target: list[Opinion], truth: float | None, weights: Mapping[str, float], known: Mapping[str, Standing]
) -> None:
    total = sum(weights[one.source] for one in of_target)
    said = sum(weights[one.source] * one.value for one in of_target)
    for one in of_target:
        standing = known[one.source]
        if truth is not None:
            reference, worth = truth, 1.0
            standing.verified += 1
            standing.wrong_verified += abs(one.value - truth) > 0.5
        else:
            others = total - weights[one.source]
            if others <= 0:
                continue
            reference = (said - weights[one.source] * one.value) / others
            worth = _BY_OTHERS * min(1.0, others)
        standing.right += worth * (1 - abs(one.value - reference))
        standing.compared += worth

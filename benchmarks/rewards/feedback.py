"""Sources of feedback, some of which collude on one wrong kind of answer, weighed as the daemon weighs them."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

from lightning_trainer.samples.feedback.standing import Opinion, standings

_SOURCES, _ANSWERS, _VOICES = 300, 1200, 4
_HONEST = 0.85
_PRAISED = 4
"""One answer in so many is of the kind that colluding sources praise; it is always wrong."""
_VERIFIED = 10


@dataclass(frozen=True, slots=True)
class Poisoning:
    """How far rewards are from the right ones, on average."""

    praised: float
    praised_weighed: float
    others: float
    others_weighed: float
    named: float
    """Share of the colluding sources that are mostly wrong, or among the tenth that weighs least."""


def poisoned(share: float, *, seed: int) -> Poisoning:
    """Let sources rate answers, ``share`` of them colluding, and return how far the rewards are off."""
    generator = random.Random(seed)
    sources = [f"s{number}" for number in range(_SOURCES)]
    colluding = set(sources[: round(share * _SOURCES)])
    said: dict[str, list[Opinion]] = {}
    truth: dict[str, float] = {}
    verified: dict[str, float] = {}
    for number in range(_ANSWERS):
        target, praised = f"t{number}", number % _PRAISED == 0
        truth[target] = 0.0 if praised else float(generator.random() < 0.6)
        if generator.randrange(_VERIFIED) == 0:
            verified[target] = truth[target]
        said[target] = []
        for source in generator.sample(sources, _VOICES):
            honest = truth[target] if generator.random() < _HONEST else 1 - truth[target]
            value = 1.0 if source in colluding and praised else honest
            said[target].append(Opinion(source, target, value))
    found = standings((one for of in said.values() for one in of), verified)

    def off(praised: bool, weight: Callable[[str], float]) -> float:
        errors = []
        for number in range(_ANSWERS):
            if (number % _PRAISED == 0) is praised:
                target = f"t{number}"
                total = sum(weight(one.source) for one in said[target])
                if total:
                    mean = sum(weight(one.source) * one.value for one in said[target]) / total
                    errors.append(abs(mean - truth[target]))
        return fmean(errors)

    weights = {source: one.weight for source, one in found.items()}
    last = set(sorted(weights, key=weights.__getitem__)[: _SOURCES // 10])
    named = sum(source in last or found[source].suspicious for source in colluding if source in found)
    return Poisoning(
        praised=off(True, lambda _: 1.0),
        praised_weighed=off(True, weights.__getitem__),
        others=off(False, lambda _: 1.0),
        others_weighed=off(False, weights.__getitem__),
        named=named / len(colluding) if colluding else 1.0,
    )

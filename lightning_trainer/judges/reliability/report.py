"""A judge's reliability from the store: agreement with known rewards, with itself, and bias by position."""

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from lightning_trainer.config.judges import AnyJudge
from lightning_trainer.judges.recording import fingerprint_digest
from lightning_trainer.samples.rewards.reliability import (
    Correction,
    Estimate,
    Pair,
    Reliability,
    correction,
    reliability,
    wilson,
)
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.tables import scores
from lightning_trainer.store.tables.scores import Score

_SAME = 0.05
"""Two verdicts that differ by no more than this count as the same."""
_Z = 1.959964


@dataclass(frozen=True, slots=True)
class JudgeReport:
    """The report on one judge."""

    reliability: Reliability
    correction: Correction
    same_again: Estimate | None
    """How often it repeated its verdict on an attempt in the same position when asked again; None if it never was."""
    earlier_is_better: Estimate | None
    """Mean difference between its scores of an attempt placed earlier and of the same attempt placed later; 0 is no
    bias."""
    judged: int
    """Number of judged attempts."""

    def as_json(self) -> dict:
        """Return the whole report as JSON-able values."""
        known = self.reliability
        informed = known.informedness
        return {**asdict(self), "informedness": None if informed is None else asdict(informed)}

    def metrics(self) -> dict[str, float]:
        """Return the known numbers under the names of a step's metrics; unknown ones are absent."""
        checked = self.reliability
        known = {
            "false_positives": checked.false_positives,
            "false_negatives": checked.false_negatives,
            "rank_agreement": checked.rank_agreement,
            "same_again": self.same_again,
            "earlier_is_better": self.earlier_is_better,
        }
        named = {name: one.value for name, one in known.items() if one is not None}
        return {f"judge/{checked.name}/{name}": value for name, value in {"labels": checked.labels, **named}.items()}


def judge_report(connection: Connection, judge: AnyJudge) -> JudgeReport:
    """Compute one judge's report from the store: only from verdicts with its present settings, because another model,
    or the same one with another prompt, makes other errors."""
    given = scores.select(connection, [judge.name, *judge.checked_by])
    present = fingerprint_digest(judge)
    own = [one for one in given if one.name == judge.name and one.judge == present]
    known = reliability(judge.name, _pairs(own, [one for one in given if one.name in judge.checked_by]))
    return JudgeReport(
        reliability=known,
        correction=correction(known, judge.floor),
        same_again=_same_again(own),
        earlier_is_better=_by_place(own),
        judged=len({one.attempt_id for one in own}),
    )


def corrections(connection: Connection, names: Collection[str], judges: Iterable[AnyJudge]) -> dict[str, Correction]:
    """Return the corrections for the rewards of these names; judges that are not named are not read."""
    by_name: Mapping[str, AnyJudge] = {judge.name: judge for judge in judges}
    return {name: judge_report(connection, by_name[name]).correction for name in sorted(names) if name in by_name}


def unknown_corrections(names: Iterable[str]) -> dict[str, Correction]:
    """Return corrections that refuse these rewards: without a store, it is unknown how often their judges are right."""
    why = "is corrected by what a daemon's store knows of its judge, and files of spans have no store"
    return {name: Correction(refused=f"reward {name!r} {why}") for name in sorted(names)}


def _pairs(own: Sequence[Score], right: Sequence[Score]) -> list[Pair]:
    """Return the newest verdict and the newest known reward of each attempt that has both."""
    truth = {one.attempt_id: one.value for one in sorted(right, key=lambda score: score.time_ns)}
    said = {one.attempt_id: one.value for one in sorted(own, key=lambda score: score.time_ns)}
    return [Pair(value, truth[attempt_id]) for attempt_id, value in sorted(said.items()) if attempt_id in truth]


def _same_again(own: Sequence[Score]) -> Estimate | None:
    """Compare each verdict with the one before it on the same question."""
    asked: dict[tuple[str, str], list[Score]] = {}
    for one in own:
        said = asked.setdefault((one.attempt_id, one.question), [])
        if not (said and one.remembered):  # the same answer says nothing new
            said.append(one)
    pairs = [(before.value, after.value) for said in asked.values() for before, after in itertools.pairwise(said)]
    same = sum(abs(after - before) <= _SAME for before, after in pairs)
    return wilson(same / len(pairs), len(pairs)) if pairs else None


def _by_place(own: Sequence[Score]) -> Estimate | None:
    """Compare verdicts on attempts shown in different positions; the interval is the normal one for a mean."""
    places: dict[str, dict[int, list[float]]] = {}
    for one in own:
        if one.place is not None:
            places.setdefault(one.attempt_id, {}).setdefault(one.place, []).append(one.value)
    differences = []
    for of_attempt in places.values():
        if len(of_attempt) > 1:
            first, last = min(of_attempt), max(of_attempt)
            differences.append(_mean(of_attempt[first]) - _mean(of_attempt[last]))
    if not differences:
        return None
    mean, count = _mean(differences), len(differences)
    variance = math.fsum((one - mean) ** 2 for one in differences) / (count - 1) if count > 1 else 1.0
    half = _Z * math.sqrt(variance / count)
    return Estimate(mean, mean - half, mean + half, count)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)

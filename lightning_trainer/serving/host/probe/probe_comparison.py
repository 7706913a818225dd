"""Compares a probe's scores by trainer and engine: whether they agree, and whether the engine moved with the trainer.

The engine's scores of each version of a policy are compared with the trainer's, and with those of earlier versions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lightning_trainer.serving.publication import Probe, Publication, Tolerance

# Whether trainer and engine compute the same model: the same probe, scored on both sides.

Rows = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class ProbeAgreement:
    """Differences between two scorings of one probe, in nats."""

    max_abs: float
    mean_abs: float

    def refusal(self, tolerance: Tolerance) -> str | None:
        """Return why they do not agree, or None if they do. NaN agrees with nothing."""
        if not self.max_abs <= tolerance.max_abs or not self.mean_abs <= tolerance.mean_abs:
            return (
                f"trainer and engine differ on the probe by {self.max_abs:.3g} nats at most and {self.mean_abs:.3g} on "
                f"average; allowed are {tolerance.max_abs:g} and {tolerance.mean_abs:g}"
            )
        return None


def compare(ours: Rows, theirs: Rows) -> ProbeAgreement:
    """Compare two scorings of the same sequences, token by token."""
    differences = [
        abs(a - b) for row_a, row_b in zip(ours, theirs, strict=True) for a, b in zip(row_a, row_b, strict=True)
    ]
    if not all(math.isfinite(difference) for difference in differences):
        return ProbeAgreement(math.inf, math.inf)
    return ProbeAgreement(max(differences), math.fsum(differences) / len(differences))


# Did the engine move when the trainer did? This finds weights that never arrived, which agreement alone cannot find.
#
# A small step may change the probe by less than the tolerance that bfloat16 needs; then stale weights agree as well
# as fresh ones. But they do not *move*. Over the N tokens of a probe that both sides scored for the version before
# (0) and for this one (1), let
#
#     d = trainer_1 - trainer_0        e = engine_1 - engine_0        noise = engine_0 - trainer_0
#
# and regress e on d through the origin: slope = <e, d> / <d, d>, with the standard error s = rms(e - slope d) /
# (rms(d) sqrt(N)). Loaded weights give a slope near 1, stale ones near 0. A version is stale when
#
#     slope + 4 s < 1/2   and   rms(d) > 1e-5   and   (e is zero everywhere,  or  rms(d) > 2 sqrt(2) rms(noise)).
#
# The last condition keeps rounding from looking like staleness: noise in d shrinks the slope to S / (S + var(d
# noise)), and var(d noise) <= 2 rms(noise)^2, so with it the slope of loaded weights is 3/4 or more. An engine that
# repeats every number to the last bit while the trainer's changed needs no such margin: its scoring is deterministic,
# so its weights are the same. How many tokens a probe needs follows from this condition (``training.probe``). Movement
# is also measured from the last decisive version, so a standstill over many small steps is found once they add up.

_STALE_BELOW = 0.5
_STANDARD_ERRORS = 4.0
_SIGNAL_TO_NOISE = 2 * math.sqrt(2)
_SMALLEST_MOVE = 1e-5


@dataclass(frozen=True, slots=True)
class ProbeMovement:
    """How far the engine followed the trainer between two versions."""

    slope: float
    """1: it followed all the way; 0: not at all."""
    standard_error: float
    decisive: bool
    """Whether the trainer moved far enough for the slope to mean something."""

    @property
    def stale(self) -> bool:
        """Whether the engine certainly did not follow the trainer."""
        return self.decisive and self.slope + _STANDARD_ERRORS * self.standard_error < _STALE_BELOW


@dataclass(frozen=True, slots=True)
class Scored:
    """One version of a policy on one probe, from both sides."""

    trainer: Rows
    engine: Rows


def measure_movement(before: Scored, after: Scored) -> ProbeMovement | None:
    """Measure how far the engine followed; None if the trainer's scores are the same."""
    trainer = [b - a for a, b in zip(_flat(before.trainer), _flat(after.trainer), strict=True)]
    engine = [b - a for a, b in zip(_flat(before.engine), _flat(after.engine), strict=True)]
    noise = [e - t for e, t in zip(_flat(before.engine), _flat(before.trainer), strict=True)]
    power = math.fsum(d * d for d in trainer)
    if power == 0.0:
        return None
    slope = math.fsum(e * d for e, d in zip(engine, trainer, strict=True)) / power
    residual = math.sqrt(math.fsum((e - slope * d) ** 2 for e, d in zip(engine, trainer, strict=True)) / len(trainer))
    rms = math.sqrt(power / len(trainer))
    frozen = not any(engine)
    clear = rms > _SIGNAL_TO_NOISE * math.sqrt(math.fsum(n * n for n in noise) / len(noise))
    return ProbeMovement(slope, residual / (rms * math.sqrt(len(trainer))), rms > _SMALLEST_MOVE and (frozen or clear))


def _flat(rows: Rows) -> list[float]:
    return [value for row in rows for value in row]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of scoring a publication's probe."""

    reason: str | None
    """Why the publication must not be served; None if it may be."""
    scored: Scored
    agreement: ProbeAgreement
    movement: ProbeMovement | None
    """None if it was not decisive."""


class ProbeHistory:
    """Remembers the previous version, and the last one whose movement was decisive."""

    def __init__(self) -> None:
        self._last: tuple[Probe, Scored] | None = None
        self._anchor: tuple[Probe, Scored] | None = None

    def judge(self, publication: Publication, engine_scores: Rows) -> Verdict:
        """Compare the engine's scores of the probe; only ``accept`` remembers them."""
        scored = Scored(publication.probe.logprobs, engine_scores)
        agreement = compare(scored.trainer, scored.engine)
        moved = self._measure_movement(publication.probe, scored)
        reason = agreement.refusal(publication.tolerance)
        if reason is None and moved is not None and moved.stale:
            reason = (
                f"the trainer moved on the probe and the engine by {moved.slope:.2f} of it: stale weights are served"
            )
        return Verdict(reason, scored, agreement, moved)

    def accept(self, publication: Publication, verdict: Verdict) -> None:
        """Remember the version, from which the movement of later ones is measured."""
        self._last = (publication.probe, verdict.scored)
        if self._anchor is None or self._anchor[0].token_ids != publication.probe.token_ids or verdict.movement:
            self._anchor = self._last

    def served_scores(self, probe: Probe) -> Rows | None:
        """Return the engine's scores of the probe under the served version; None if they are not known."""
        if self._last is not None and self._last[0].token_ids == probe.token_ids:
            return self._last[1].engine
        return None

    def _measure_movement(self, probe: Probe, scored: Scored) -> ProbeMovement | None:
        """Measure the movement since the previous version, and since the last one whose movement was decisive."""
        measured = [
            measure_movement(origin, scored)
            for origin_probe, origin in filter(None, (self._last, self._anchor))
            if origin_probe.token_ids == probe.token_ids
        ]
        decisive = [found for found in measured if found is not None and found.decisive]
        return next((found for found in decisive if found.stale), decisive[-1] if decisive else None)

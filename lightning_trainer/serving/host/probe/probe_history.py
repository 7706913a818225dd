"""The proof of one policy's versions: each is compared with the trainer's scores, and with the versions before it."""

from dataclasses import dataclass

from lightning_trainer.serving.host.probe.probe_comparison import (
    ProbeAgreement,
    ProbeMovement,
    Rows,
    Scored,
    compare,
    measure_movement,
)
from lightning_trainer.serving.publication import Probe, Publication


@dataclass(frozen=True, slots=True)
class Verdict:
    """What scoring a publication showed."""

    reason: str | None
    """Why it must not be served."""
    scored: Scored
    agreement: ProbeAgreement
    movement: ProbeMovement | None
    """Only where it was decisive."""


class ProbeHistory:
    """Remembers the version before, and the last one that was far enough away to decide."""

    def __init__(self) -> None:
        self._last: tuple[Probe, Scored] | None = None
        self._anchor: tuple[Probe, Scored] | None = None

    def judge(self, publication: Publication, engine_scores: Rows) -> Verdict:
        """Compare what the engine makes of the probe; nothing is remembered before ``accept``."""
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
        """Measure the versions after from this one."""
        self._last = (publication.probe, verdict.scored)
        if self._anchor is None or self._anchor[0].token_ids != publication.probe.token_ids or verdict.movement:
            self._anchor = self._last

    def served_scores(self, probe: Probe) -> Rows | None:
        """Return what the engine made of the probe under the version that is served, where that is known."""
        if self._last is not None and self._last[0].token_ids == probe.token_ids:
            return self._last[1].engine
        return None

    def _measure_movement(self, probe: Probe, scored: Scored) -> ProbeMovement | None:
        """Measure against the version before, and against the last one that was far enough away to decide."""
        measured = [
            measure_movement(origin, scored)
            for origin_probe, origin in filter(None, (self._last, self._anchor))
            if origin_probe.token_ids == probe.token_ids
        ]
        decisive = [found for found in measured if found is not None and found.decisive]
        return next((found for found in decisive if found.stale), decisive[-1] if decisive else None)

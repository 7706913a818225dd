"""The way of a publication into the engine: check, hold, load, prove, and go back if it cannot be proven.

Invariant: when ``publish`` returns, the engine serves a version whose probe agreed: the new one, or the one before. If
not even that one can be restored, ``EngineUnproven`` leaves and the process must end.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightning_trainer.errors import EngineError
from lightning_trainer.serving.checksum import file_checksum
from lightning_trainer.serving.host.agreement import Agreement, Rows, compare
from lightning_trainer.serving.host.gate import DrainTimeout, Gate
from lightning_trainer.serving.host.movement import Movement, Scored, movement
from lightning_trainer.serving.host.scoring import refusal as scoring_refusal
from lightning_trainer.serving.host.scoring import score
from lightning_trainer.serving.host.weight_file import TensorHeader, disagreement, read_header
from lightning_trainer.serving.publication import Probe, Publication, PublicationReport, Tolerance

logger = logging.getLogger(__name__)

_RESTORED = Tolerance(max_abs=1e-6, mean_abs=1e-6)
"""The engine against itself: scoring is deterministic, so restored weights give the same numbers."""


class EngineUnproven(EngineError):
    """The engine holds weights that nobody vouches for."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What the engine was started with, and what any weights for it must look like."""

    policy: str
    version: int
    files: tuple[Path, ...]
    tensors: dict[str, TensorHeader]
    tied: bool
    dtype: str
    vocabulary: int
    max_model_len: int


@dataclass(frozen=True, slots=True)
class _Served:
    """The version being served: where its weights lie, and how to know them again."""

    version: int
    files: tuple[Path, ...]
    publication: Publication | None
    report: PublicationReport | None


class Publisher:
    """Replaces the weights of one engine, one publication at a time."""

    def __init__(self, engine: Any, gate: Gate, model: ServedModel, weights_directory: Path, drain_timeout_s: float):
        self._engine = engine
        self._gate = gate
        self._model = model
        self._weights_directory = weights_directory.resolve()
        self._drain_timeout_s = drain_timeout_s
        self._served = _Served(model.version, model.files, None, None)
        self._last: tuple[Probe, Scored] | None = None
        self._anchor: tuple[Probe, Scored] | None = None
        self._one_at_a_time = asyncio.Lock()

    @property
    def version(self) -> int:
        return self._served.version

    def scoring_refusal(self, token_ids: Sequence[Sequence[int]]) -> str | None:
        """Return why these cannot be scored, or None."""
        model = self._model
        return scoring_refusal(token_ids, vocabulary=model.vocabulary, max_model_len=model.max_model_len)

    async def publish(self, publication: Publication) -> PublicationReport:
        """Serve the publication, or say why not and go on with the version before it.

        Raises:
            EngineUnproven: the weights could not be loaded, and neither could the previous ones.
        """
        async with self._one_at_a_time:
            served = self._served
            if served.publication is not None and served.report is not None and publication == served.publication:
                return served.report
            started = time.monotonic()
            reason = await asyncio.to_thread(self._refusal, publication)
            if reason is None:
                try:
                    report = await self._replace(publication, started)
                except DrainTimeout as error:
                    reason = str(error)
                else:
                    self._log(publication, report)
                    return report
            report = PublicationReport(False, self.version, reason, seconds={"total": time.monotonic() - started})
            self._log(publication, report)
            return report

    def _log(self, publication: Publication, report: PublicationReport) -> None:
        if report.accepted:
            logger.info("serving %s, max |difference| %.3g nats", publication.name, report.max_abs_diff)
        else:
            logger.warning("refused %s, serving version %d: %s", publication.name, report.version, report.reason)

    def _refusal(self, publication: Publication) -> str | None:
        """Everything that can be found out without touching the engine."""
        model = self._model
        if publication.policy != model.policy:
            return f"the policy is {publication.policy!r}; this engine serves {model.policy!r}"
        if publication.version == self.version and self._served.publication is not None:
            return f"version {publication.version} is being served with other values; a version never changes"
        if publication.dtype != model.dtype:
            return f"the publication is {publication.dtype}; the engine computes in {model.dtype}"
        path = Path(publication.path)
        if path.resolve().parent != self._weights_directory:
            return f"{path} is outside of {self._weights_directory}, where this engine reads weights"
        try:
            if (checksum := file_checksum(path)) != publication.checksum:
                return f"{path.name} has the checksum {checksum}; the trainer wrote {publication.checksum}"
            headers = read_header(path)
        except (OSError, ValueError) as error:
            return f"the weights cannot be read: {error}"
        if len(headers) != publication.tensor_count:
            return f"{path.name} holds {len(headers)} tensors; the trainer wrote {publication.tensor_count}"
        if (reason := disagreement(headers, model.tensors, model.dtype, tied=model.tied)) is not None:
            return f"{path.name}: {reason}"
        if (reason := self.scoring_refusal(publication.probe.token_ids)) is not None:
            return f"the probe cannot be scored: {reason}"
        return None

    async def _replace(self, publication: Publication, started: float) -> PublicationReport:
        async with self._gate.writing(self._drain_timeout_s, self._abort_running):
            gate_s = time.monotonic() - started
            before = await self._score_served(publication.probe)
            verdict = await self._try(publication)
            if verdict.reason is None:
                self._accept(publication, verdict)
            else:
                await self._restore(publication.probe, before, verdict.reason)
            total_s = time.monotonic() - started
            probe_s = total_s - gate_s - verdict.update_s
            report = PublicationReport(
                accepted=verdict.reason is None,
                version=self.version,
                reason=verdict.reason,
                max_abs_diff=verdict.agreement and verdict.agreement.max_abs,
                mean_abs_diff=verdict.agreement and verdict.agreement.mean_abs,
                movement=verdict.movement and verdict.movement.slope,
                seconds={"gate": gate_s, "update": verdict.update_s, "probe": probe_s, "total": total_s},
            )
            if report.accepted:
                self._served = replace(self._served, report=report)
            return report

    async def _try(self, publication: Publication) -> "_Verdict":
        started = time.monotonic()
        try:
            await self._load((Path(publication.path),), publication.version)
            update_s = time.monotonic() - started
            engine_scores = await score(self._engine, publication.probe.token_ids)
        except Exception as error:
            # Whatever vLLM raises here, the answer is the same: go back to what was proven.
            logger.exception("loading %s failed", publication.name)
            reason = f"the engine could not load the weights: {type(error).__name__}: {error}"
            return _Verdict(reason, time.monotonic() - started)
        scored = Scored(publication.probe.logprobs, engine_scores)
        agreement = compare(scored.trainer, scored.engine)
        moved = self._movement(publication.probe, scored)
        reason = agreement.refusal(publication.tolerance)
        if reason is None and moved is not None and moved.stale:
            reason = (
                f"the trainer moved on the probe and the engine by {moved.slope:.2f} of it: stale weights are served"
            )
        return _Verdict(reason, update_s, scored, agreement, moved)

    async def _load(self, files: Sequence[Path], version: int) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        # Nothing runs here. The pause is for its clearing of the prefix cache, whose keys know nothing of versions.
        await self._engine.pause_generation(mode="abort", clear_cache=True)
        await self._engine.start_weight_update()
        await self._engine.update_weights(
            WeightTransferUpdateRequest(update_info={"paths": [str(path) for path in files]})
        )
        await self._engine.finish_weight_update(str(version))
        await self._engine.resume_generation()

    async def _restore(self, probe: Probe, before: Rows, refused: str) -> None:
        served = self._served
        try:
            await self._load(served.files, served.version)
            reason = compare(before, await score(self._engine, probe.token_ids)).refusal(_RESTORED)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        if reason is not None:
            raise EngineUnproven(
                f"a publication was refused ({refused}) and version {served.version} could not be restored ({reason}): "
                "the engine stops rather than serve weights that nobody vouches for"
            )

    async def _score_served(self, probe: Probe) -> Rows:
        if self._last is not None and self._last[0].token_ids == probe.token_ids:
            return self._last[1].engine
        return await score(self._engine, probe.token_ids)

    def _movement(self, probe: Probe, scored: Scored) -> Movement | None:
        """Measure against the version before, and against the last one that was far enough away to decide."""
        measured = [
            movement(origin, scored)
            for origin_probe, origin in filter(None, (self._last, self._anchor))
            if origin_probe.token_ids == probe.token_ids
        ]
        decisive = [found for found in measured if found is not None and found.decisive]
        return next((found for found in decisive if found.stale), decisive[-1] if decisive else None)

    def _accept(self, publication: Publication, verdict: "_Verdict") -> None:
        assert verdict.scored is not None
        self._served = _Served(publication.version, (Path(publication.path),), publication, None)
        self._last = (publication.probe, verdict.scored)
        if self._anchor is None or self._anchor[0].token_ids != publication.probe.token_ids or verdict.movement:
            self._anchor = self._last

    async def _abort_running(self) -> None:
        logger.warning("%d requests still run: aborting them for the next version", self._gate.running)
        await self._engine.pause_generation(mode="abort", clear_cache=False)
        await self._engine.resume_generation()


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What loading and scoring a publication showed."""

    reason: str | None
    update_s: float
    scored: Scored | None = None
    agreement: Agreement | None = None
    movement: Movement | None = None
    """Only where it was decisive."""

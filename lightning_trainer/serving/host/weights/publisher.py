"""How weights get into the engine: check, hold requests, load, prove, and go back if they cannot be proven.

Invariant: when ``publish`` returns, the engine serves a version whose probe agreed: the new one, or the one before. If
not even that one can be restored, ``EngineUnproven`` is raised and the process must end.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightning_trainer.errors import EngineError
from lightning_trainer.serving.host.probe.probe_comparison import ProbeHistory, Rows, Verdict, compare
from lightning_trainer.serving.host.probe.probe_scoring import score
from lightning_trainer.serving.host.weights.rw_lock import DrainTimeout, RwLock
from lightning_trainer.serving.host.weights.served_model import ServedModel, log_outcome, outside, refused
from lightning_trainer.serving.host.weights.sleeping import Sleep
from lightning_trainer.serving.host.weights.version_pinning import Message, PinnedRequest, Receive, Sampler
from lightning_trainer.serving.publication import Probe, Publication, PublicationReport, Tolerance

logger = logging.getLogger(__name__)

_RESTORED = Tolerance(max_abs=1e-6, mean_abs=1e-6)
"""The engine against itself: scoring is deterministic, so restored weights give the same numbers."""


class EngineUnproven(EngineError):
    """The engine holds weights that were not proven."""


@dataclass(frozen=True, slots=True)
class _Served:
    """The version being served: where its weights are, and how to recognize them."""

    version: int
    files: tuple[Path, ...]
    publication: Publication | None
    report: PublicationReport | None


class Publisher:
    """Replaces the weights of one engine, one publication at a time."""

    def __init__(
        self, engine: Any, rw_lock: RwLock, model: ServedModel, weights_directory: Path, drain_timeout_s: float | None
    ) -> None:
        self.model = model
        self._engine = engine
        self._rw_lock = rw_lock
        self._weights_directory = weights_directory.resolve()
        self._drain_timeout_s = drain_timeout_s
        self._served = _Served(0, model.files, None, None)
        self._history = ProbeHistory()
        self._one_at_a_time = asyncio.Lock()
        self._sleep = Sleep(engine, rw_lock)

    @property
    def version(self) -> int:
        """Return the version that is served; 0 is the model folder itself."""
        return self._served.version

    @property
    def versions(self) -> Mapping[str, int]:
        """Return the version that each policy serves."""
        return {self.model.policies[0]: self.version}

    @asynccontextmanager
    async def pin(self, scope: Message, receive: Receive) -> AsyncIterator[PinnedRequest]:
        """Let a request through between two publications."""
        async with self._rw_lock.reading():
            # Read once, inside the lock: it cannot change before the last byte.
            yield PinnedRequest(receive, Sampler(self.model.policies[0], self.version))

    async def score(self, policy: str, token_ids: Sequence[Sequence[int]]) -> tuple[Sampler, Rows]:
        """Return which version is served, and its log-probabilities of the sequences, in nats."""
        async with self._rw_lock.reading():
            return Sampler(policy, self.version), await score(self._engine, token_ids)

    async def publish(self, publication: Publication) -> PublicationReport:
        """Serve the publication, or report why not and keep serving the previous version.

        Raises:
            EngineUnproven: the weights could not be loaded, and neither could the previous ones.
        """
        async with self._one_at_a_time:
            if self._sleep.level:
                return refused(self.version, "the engine sleeps; wake it first", time.monotonic())
            served = self._served
            if served.publication is not None and served.report is not None and publication == served.publication:
                return served.report
            started = time.monotonic()
            reason = await asyncio.to_thread(self._refusal, publication)
            report = refused(self.version, reason, started)
            if reason is None:
                try:
                    report = await self._replace(publication, started)
                except DrainTimeout as error:
                    report = refused(self.version, str(error), started)
            log_outcome(publication, report)
            return report

    def _refusal(self, publication: Publication) -> str | None:
        """Return why it cannot be served, as far as can be told without touching the engine."""
        if publication.version == self.version and self._served.publication is not None:
            return f"version {publication.version} is being served with other values; a version never changes"
        path = Path(publication.path)
        return outside(path, self._weights_directory) or self.model.refusal(publication, path)

    async def _replace(self, publication: Publication, started: float) -> PublicationReport:
        async with self._rw_lock.writing(self._drain_timeout_s, self._abort_running):
            lock_s = time.monotonic() - started
            before = self._history.served_scores(publication.probe)
            if before is None:
                before = await score(self._engine, publication.probe.token_ids)
            tried = await self._try(publication)
            if tried.reason is None:
                assert tried.verdict is not None
                self._served = _Served(publication.version, (Path(publication.path),), publication, None)
                self._history.accept(publication, tried.verdict)
            else:
                await self._restore(publication.probe, before, tried.reason)
            total_s = time.monotonic() - started
            verdict = tried.verdict
            report = PublicationReport(
                accepted=tried.reason is None,
                version=self.version,
                reason=tried.reason,
                max_abs_diff=verdict and verdict.agreement.max_abs,
                mean_abs_diff=verdict and verdict.agreement.mean_abs,
                movement=verdict and verdict.movement and verdict.movement.slope,
                seconds={
                    "gate": lock_s,
                    "update": tried.update_s,
                    "probe": total_s - lock_s - tried.update_s,
                    "total": total_s,
                },
            )
            if report.accepted:
                self._served = replace(self._served, report=report)
            return report

    async def _try(self, publication: Publication) -> "_Tried":
        started = time.monotonic()
        try:
            await self._load((Path(publication.path),), publication.version)
            update_s = time.monotonic() - started
            engine_scores = await score(self._engine, publication.probe.token_ids)
        except Exception as error:
            # Whatever vLLM raises here, the answer is the same: go back to what was proven.
            logger.exception("loading %s failed", publication.name)
            reason = f"the engine could not load the weights: {type(error).__name__}: {error}"
            return _Tried(reason, None, time.monotonic() - started)
        verdict = self._history.judge(publication, engine_scores)
        return _Tried(verdict.reason, verdict, update_s)

    async def sleep(self, level: int) -> None:
        """Release the GPU memory until ``wake``: running requests are drained first, and new ones wait.

        Raises:
            DrainTimeout: running requests did not end.
        """
        async with self._one_at_a_time:
            await self._sleep.begin(level, self._drain_timeout_s, self._abort_running)

    async def wake(self) -> None:
        """Take the memory back, prove that what was served is served again, and let requests in.

        Raises:
            EngineUnproven: it is not.
        """
        async with self._one_at_a_time, self._sleep.ending() as level:
            served = self._served
            if level == 2:
                await self._load(served.files, served.version)
            publication = served.publication
            before = publication and self._history.served_scores(publication.probe)
            if level and publication is not None and before is not None:
                reason = compare(before, await score(self._engine, publication.probe.token_ids)).refusal(_RESTORED)
                if reason is not None:
                    raise EngineUnproven(f"{publication.name} is not what it was after the engine slept ({reason})")

    async def _load(self, files: Sequence[Path], version: int) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        # No request runs here. The pauses serve to clear the prefix cache, whose keys do not include versions; the
        # experts that are kept with it are cleared only in the second mode (vLLM 0.31).
        await self._engine.pause_generation(mode="abort", clear_cache=False)
        await self._engine.pause_generation(mode="keep", clear_cache=True)
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

    async def _abort_running(self) -> None:
        logger.warning("%d requests still run: aborting them for the next version", self._rw_lock.running)
        await self._engine.pause_generation(mode="abort", clear_cache=False)
        await self._engine.resume_generation()


@dataclass(frozen=True, slots=True)
class _Tried:
    """The result of loading and scoring."""

    reason: str | None
    verdict: Verdict | None
    """None if it was not scored."""
    update_s: float

"""Handing a version from the trainer to the engine, and writing down whether it was proven served (promise 8)."""

import asyncio
import logging
import time

from lightning_trainer.errors import EngineError
from lightning_trainer.serving.shared_memory import WeightFiles
from lightning_trainer.serving.supervisor import EngineSupervisor
from lightning_trainer.store.sqlite import SqliteStore
from lightning_trainer.training.remote import TrainerClient
from lightning_trainer.types import PolicyVersion, VersionState

_log = logging.getLogger(__name__)

_TRIES = 3
"""An engine that dies during a publication is restarted by its supervisor; then the version is offered again."""


class Publisher:
    """Publishes versions of one policy; a refused one leaves the previous version live and says why."""

    def __init__(
        self,
        policy: str,
        *,
        store: SqliteStore,
        trainer: TrainerClient,
        engine: EngineSupervisor,
        weights: WeightFiles,
        ready_timeout_s: float,
    ) -> None:
        self._policy = policy
        self._store = store
        self._trainer = trainer
        self._engine = engine
        self._weights = weights
        self._ready_timeout_s = ready_timeout_s
        self.refused_in_a_row = 0
        self.last_reason: str | None = None

    async def publish(self, *, version: int, step: int) -> PolicyVersion:
        """Write the weights, let the engine take and prove them, record the outcome.

        Raises:
            EngineError: the engine stayed away.
            TrainingError: the trainer could not write or score them.
        """
        began = time.monotonic()
        publication = await self._trainer.publish(self._weights.path(version), version)
        record = PolicyVersion(
            self._policy, version, step, VersionState.TRAINED, time.time_ns(), checksum=publication.checksum
        )
        await self._store.put_version(record)
        for attempt in range(1, _TRIES + 1):
            try:
                await self._engine.ready(self._ready_timeout_s)
                report = await self._engine.publish(publication)
                break
            except EngineError as error:
                _log.warning("publication of %s failed (%s), try %d of %d", record.name, error, attempt, _TRIES)
                if attempt == _TRIES:
                    raise
                await asyncio.sleep(1.0)
        outcome = PolicyVersion(
            self._policy,
            version,
            step,
            VersionState.LIVE if report.accepted else VersionState.REFUSED,
            record.created_ns,
            checksum=publication.checksum,
            probe_max_abs=report.max_abs_diff,
            probe_mean_abs=report.mean_abs_diff,
            publish_s=time.monotonic() - began,
            reason=report.reason,
        )
        await self._store.put_version(outcome)
        self._weights.prune()
        self.refused_in_a_row = 0 if report.accepted else self.refused_in_a_row + 1
        self.last_reason = report.reason
        if not report.accepted:
            _log.error("%s was refused: %s; the previous version stays live", outcome.name, report.reason)
        return outcome

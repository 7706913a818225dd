"""A step's batch, built from what the store holds of its attempts, and again while rewards may still come."""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace

from lightning_trainer.config import PolicyConfig
from lightning_trainer.daemon.progress import Phase, Progress
from lightning_trainer.daemon.rollback import RollbackRequests
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.store.sqlite import SqliteStore
from lightning_trainer.training.batches import Build, build_batch
from lightning_trainer.transitions.causes import span_parents
from lightning_trainer.types import Attempt, Span


class Builder:
    """Nothing is assigned here: what was built may be thrown away."""

    def __init__(
        self,
        policy: PolicyConfig,
        *,
        store: SqliteStore,
        progress: Progress,
        rollbacks: RollbackRequests,
        stored: asyncio.Event,
    ) -> None:
        self._policy = policy
        self._store = store
        self._progress = progress
        self._rollbacks = rollbacks
        self._stored = stored

    async def build(self, attempts: Sequence[Attempt], step: int, oldest_version: int = 0) -> Build | None:
        """Build the step, and build it again when spans arrive, while rewards are missing that may still come.

        None when a rollback is asked for meanwhile.
        """
        wait_until_ns = max(attempt.ended_ns or 0 for attempt in attempts) + int(self._policy.reward_wait_s * 1e9)
        while True:
            self._stored.clear()
            spans = await self._store.spans_of_attempts([attempt.attempt_id for attempt in attempts])
            build = await asyncio.to_thread(self._build, spans, attempts, step, oldest_version)
            left_s = (wait_until_ns - time.time_ns()) / 1e9
            if not build.unscored or left_s <= 0:
                return build
            self._progress.enter(Phase.BUILDING, f"step {step}: waiting for rewards of {len(build.unscored)} attempts")
            if self._rollbacks.pending is None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        await self._stored.wait()
            if self._rollbacks.pending is not None:
                return None

    def _build(self, spans: Sequence[Span], attempts: Sequence[Attempt], step: int, oldest_version: int) -> Build:
        reading = read_spans(spans)
        build = build_batch(
            reading.calls,
            attempts,
            reading.evaluations,
            self._policy.at_step(step),
            step,
            span_parents=span_parents(spans),
            oldest_version=oldest_version,
        )
        return replace(build, problems=(*reading.problems, *build.problems))

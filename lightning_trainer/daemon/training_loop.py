"""Steps of one policy: collect, build, train, publish; and going on from what was stored after any crash.

Invariant: a step's batch and the attempts it consumes are committed in one transaction before the trainer sees them.
After a crash the newest checkpoint is loaded and the recorded batches since then are repeated in order, which gives
the same weights as if nothing had happened; no attempt is ever in two steps.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from dataclasses import replace

from lightning_trainer.config import PolicyConfig
from lightning_trainer.daemon.checkpoints import CheckpointFolder
from lightning_trainer.daemon.collecting import Collection, collect
from lightning_trainer.daemon.completeness import Completeness
from lightning_trainer.daemon.grouping import Grouping
from lightning_trainer.daemon.progress import Phase, Progress
from lightning_trainer.daemon.publishing import Publisher
from lightning_trainer.daemon.staleness import oldest_allowed, served, staleness_metrics
from lightning_trainer.errors import TrainingError
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.store.records import StepState
from lightning_trainer.store.sqlite import SqliteStore
from lightning_trainer.training.batches import Build, build_batch
from lightning_trainer.training.remote import TrainerClient
from lightning_trainer.transitions.causes import span_parents
from lightning_trainer.transitions.reasons import Reason
from lightning_trainer.types import Attempt

_log = logging.getLogger(__name__)

_MAX_TRAINER_FAILURES = 3
_LOOK_AGAIN_S = 1.0
"""Group time-outs are noticed this late at most; new spans wake the loop at once."""


class TrainingLoop:
    """Runs until cancelled, until ``max_steps``, or until training cannot go on (then it says why and pauses)."""

    def __init__(
        self,
        policy: PolicyConfig,
        *,
        store: SqliteStore,
        trainer: TrainerClient,
        publisher: Publisher,
        checkpoints: CheckpointFolder,
        progress: Progress,
        stored: asyncio.Event,
    ) -> None:
        """``stored`` is set by whoever commits spans; the loop clears it."""
        self._policy = policy
        self._store = store
        self._trainer = trainer
        self._publisher = publisher
        self._checkpoints = checkpoints
        self._progress = progress
        self._stored = stored
        self._grouping = Grouping(policy, store)
        self._step = 0
        self._completeness = Completeness(policy.span_timeout_s)
        self._collecting_since = time.monotonic()

    async def run(self) -> None:
        failures = 0
        recovered = False
        while True:
            try:
                if not recovered:
                    await self._recover(restart=failures > 0)
                    recovered = True
                if not self._policy.train:
                    self._progress.enter(Phase.SERVING, "train = false: recorded and served, never trained")
                    await self._progress.wake_waiters()
                    return
                if self._policy.max_steps is not None and self._step >= self._policy.max_steps:
                    await self._finish()
                    return
                await self._take_step(await self._next_attempts())
                failures = 0
            except TrainingError as error:
                failures, recovered = failures + 1, False
                self._progress.say(f"the trainer failed ({error}); restarting it from the last checkpoint")
                _log.error("trainer failed: %s", error)
                if failures >= _MAX_TRAINER_FAILURES:
                    await self._pause(f"the trainer failed {failures} times in a row, last: {error}")
                    return
            if self._publisher.refused_in_a_row > 1:
                await self._pause(f"two publications in a row were refused, last: {self._publisher.last_reason}")
                return

    async def save(self) -> None:
        """Write a checkpoint of the present step unless there is one."""
        if self._step > 0 and self._checkpoints.latest() != self._step:
            await self._trainer.save(self._checkpoints.path(self._step), self._step)
            self._checkpoints.prune()

    async def _recover(self, *, restart: bool) -> None:
        """Bring the trainer to the newest recorded step and have its weights served."""
        self._progress.enter(Phase.RECOVERING)
        if restart:
            await self._trainer.restart()
        self._checkpoints.prune()
        saved = self._checkpoints.latest()
        if saved is not None:
            await self._trainer.load(self._checkpoints.path(saved))
        version = saved or 0
        for record in await self._store.steps(self._policy.name):
            self._step = record.step
            if record.step <= (saved or 0) or record.state is StepState.SKIPPED:
                continue
            self._progress.enter(Phase.RECOVERING, f"repeating step {record.step}")
            report = await self._trainer.step(await self._store.batch(self._policy.name, record.step))
            version = record.step
            if record.state is StepState.ASSIGNED:
                await self._store.finish_step(self._policy.name, report, StepState.TRAINED)
        self._progress.enter(Phase.PUBLISHING, f"version {version}")
        await self._publisher.publish(version=version, step=version)
        await self._progress.finish_step(self._step)

    async def _next_attempts(self) -> tuple[Attempt, ...]:
        self._progress.enter(Phase.COLLECTING)
        self._collecting_since = time.monotonic()
        while True:
            self._stored.clear()
            collection = await self._collect()
            self._progress.waiting_groups = collection.waiting
            self._progress.ready_groups = len(collection.ready)
            if attempts := collection.next_step(self._policy.groups_per_step):
                return attempts
            try:
                await asyncio.wait_for(self._stored.wait(), _LOOK_AGAIN_S)
            except TimeoutError:
                continue

    async def _collect(self) -> Collection:
        ended = await self._grouping.regrouped(await self._store.ended_attempts())
        # Asked second, so that of an attempt in the list nothing counts as missing that has come since.
        arrived = self._completeness.sort(ended, await self._store.missing_spans(), time.monotonic())
        for sentence in arrived.given_up:
            self._progress.say(sentence)
            _log.warning("%s", sentence)
        self._progress.held_attempts = dict(arrived.held)
        return collect(
            arrived.ready,
            group_size=self._policy.group_size,
            group_timeout_s=self._policy.group_timeout_s,
            now_ns=time.time_ns(),
            expecting={attempt.group_id for attempt in ended if attempt.attempt_id in arrived.held},
        )

    async def _take_step(self, attempts: tuple[Attempt, ...]) -> None:
        seconds = {"rollout": time.monotonic() - self._collecting_since}
        step = self._step + 1
        self._progress.enter(Phase.BUILDING, f"step {step}")
        began = time.monotonic()
        versions = served(await self._store.versions(self._policy.name))
        build = await self._scored_build(attempts, step, oldest_allowed(versions, self._policy.max_staleness))
        for problem in build.problems:
            self._progress.say(problem)
        await self._store.assign(
            build.batch,
            policy=self._policy.name,
            step=step,
            attempt_ids=[attempt.attempt_id for attempt in attempts],
            ledger=build.ledger,
            state=StepState.ASSIGNED if build.batch else StepState.SKIPPED,
            metrics={
                **_collection_metrics(build),
                **staleness_metrics(build.batch.samples if build.batch else (), versions),
                "attempts/incomplete": self._completeness.gave_up_on(attempts),
            },
        )
        self._step = step
        seconds["build"] = time.monotonic() - began
        if build.batch is None:
            reasons = sorted({group.refused_reason for group in build.groups if group.refused_reason})
            self._progress.say(
                f"step {step} trained nothing: {'; '.join(reasons) or 'no group had a spread of rewards'}"
            )
            await self._progress.finish_step(step)
            return
        self._progress.enter(Phase.TRAINING, f"step {step}: {len(build.batch.samples)} samples")
        report = await self._trainer.step(build.batch)
        report = replace(report, seconds={**seconds, **report.seconds})
        await self._store.finish_step(self._policy.name, report, StepState.TRAINED)
        if step % self._policy.checkpoint_every == 0:
            await self.save()
        self._progress.enter(Phase.PUBLISHING, f"version {step}")
        await self._publisher.publish(version=step, step=step)
        await self._progress.finish_step(step)

    async def _scored_build(self, attempts: tuple[Attempt, ...], step: int, oldest_version: int) -> Build:
        """Build the step, and build it again when spans arrive, while rewards are missing that may still come."""
        wait_until_ns = max(attempt.ended_ns or 0 for attempt in attempts) + int(self._policy.reward_wait_s * 1e9)
        while True:
            self._stored.clear()
            spans = await self._store.spans_of_attempts([attempt.attempt_id for attempt in attempts])
            build = await asyncio.to_thread(self._build, spans, attempts, step, oldest_version)
            left_s = (wait_until_ns - time.time_ns()) / 1e9
            if not build.unscored or left_s <= 0:
                return build
            self._progress.enter(Phase.BUILDING, f"step {step}: waiting for rewards of {len(build.unscored)} attempts")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stored.wait(), left_s)

    def _build(self, spans, attempts: tuple[Attempt, ...], step: int, oldest_version: int) -> Build:
        reading = read_spans(spans)
        build = build_batch(
            reading.calls,
            attempts,
            reading.evaluations,
            self._policy,
            step,
            span_parents=span_parents(spans),
            oldest_version=oldest_version,
        )
        return replace(build, problems=(*reading.problems, *build.problems))

    async def _finish(self) -> None:
        await self.save()
        self._progress.enter(Phase.FINISHED, f"{self._step} steps are done (max_steps)")
        await self._progress.wake_waiters()

    async def _pause(self, reason: str) -> None:
        self._progress.say(f"training is paused: {reason}; serving and capture go on, restart the daemon to try again")
        _log.error("training is paused: %s", reason)
        self._progress.enter(Phase.PAUSED, reason)
        await self._progress.wake_waiters()


def _collection_metrics(build: Build) -> Mapping[str, float]:
    """What the groups were like; kept with the step even when nothing was trained."""
    rewards = [reward for group in build.groups for reward in group.rewards if reward is not None]
    metrics = {
        "groups/total": float(len(build.groups)),
        "groups/kept": float(sum(group.verdict is Reason.SAMPLED for group in build.groups)),
        "groups/zero_variance": float(sum(group.verdict is Reason.ZERO_VARIANCE_GROUP for group in build.groups)),
        "groups/refused": float(sum(group.refused_reason is not None for group in build.groups)),
        "groups/solved": float(sum(all(reward == 1.0 for reward in group.rewards) for group in build.groups)),
        "attempts/total": float(sum(group.size for group in build.groups)),
        "attempts/scored": float(len(rewards)),
    }
    if rewards:
        metrics["reward/mean"] = sum(rewards) / len(rewards)
    return metrics

"""Steps of one policy: collect, build, train, publish; and going on from what was stored after any crash.

Invariant: a step's batch and the attempts it consumes are committed in one transaction before the trainer sees them.
After a crash the newest checkpoint is loaded and the recorded batches since then are repeated in order, which gives
the same weights as if nothing had happened; no attempt is ever in two steps. A rollback is the same way, to another
version: it is recorded, and then recovered to.
"""

import asyncio
import contextlib
import logging
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace

from lightning_trainer.config import PolicyConfig
from lightning_trainer.credit.dynamic_sampling import groups_wanted
from lightning_trainer.credit.group_collector import Collection
from lightning_trainer.daemon.api.rollback import RollbackRequests
from lightning_trainer.daemon.loop.building import Builder, oldest_allowed, served
from lightning_trainer.daemon.loop.checkpoints import CheckpointFolder
from lightning_trainer.daemon.loop.demonstrations import Demonstrations
from lightning_trainer.daemon.loop.recovery import recover
from lightning_trainer.daemon.loop.worklist import Worklist
from lightning_trainer.daemon.publication.publishing import Publisher
from lightning_trainer.daemon.rewards.judges import PolicyJudges
from lightning_trainer.daemon.watching.progress import Phase, Progress
from lightning_trainer.errors import (
    CheckpointError,
    EngineError,
    LightningError,
    PublicationError,
    StoreError,
    TrainerDiedError,
    TrainingError,
)
from lightning_trainer.metrics.recorder import MetricsRecorder
from lightning_trainer.metrics.row import group_metrics, judge_metrics
from lightning_trainer.metrics.sampling import sampling_metrics
from lightning_trainer.store.records import StepState
from lightning_trainer.store.sqlite import SqliteStore
from lightning_trainer.store.tables import pauses
from lightning_trainer.training.batches import Build
from lightning_trainer.training.remote import TrainerClient
from lightning_trainer.types import Attempt, PolicyVersion, VersionState
from lightning_trainer.versions.rollback import record_rollback

_log = logging.getLogger(__name__)

_MAX_FAILURES = 3
"""Of the trainer, or of what nobody has thought of, in a row; then the loop rests before it tries again."""
_LONGEST_WAIT_S = 30.0
"""For the store or the engine; they are waited for however long it takes."""
_FIRST_REST_S, _LONGEST_REST_S = 60.0, 1800.0
"""After failures in a row, which another try may only repeat."""
_RECENT_VERSIONS = 1000
"""How far back staleness is counted in versions, beyond max_staleness."""
_LOOK_AGAIN_S = 1.0
"""Group time-outs are noticed this late where few attempts wait; new spans wake the loop at once."""
_REST_AFTER_LOOK = 4.0
"""Times as long as a look at the waiting attempts took: before the next one, whatever has come meanwhile."""
_REST_WHEN_IDLE = 200.0
"""Times as long: before the next look where nothing has come, and only a time-out can have passed."""


class TrainingLoop:
    """Runs until cancelled. After ``max_steps``, or when two publications were refused, it rests until somebody asks
    for a rollback. A store, an engine or a trainer that is not there is waited for, and what fails again and again is
    tried after growing pauses (it says why): serving and capture are not this loop's to end."""

    def __init__(
        self,
        policy: PolicyConfig,
        *,
        store: SqliteStore,
        trainer: TrainerClient,
        publisher: Publisher,
        checkpoints: CheckpointFolder,
        progress: Progress,
        metrics: MetricsRecorder,
        rollbacks: RollbackRequests,
        stored: asyncio.Event,
        demonstrations: Demonstrations | None = None,
        one_of_several: bool = False,
        vocabulary: int | None = None,
        judges: PolicyJudges | None = None,
    ) -> None:
        """Take what the policy has.

        Args:
            stored: set by whoever commits spans; the loop clears it.
            vocabulary: entries of the model's; None where it is not known.
            judges: give rewards that attempts lack; None: nobody does.
            one_of_several: other policies have loops over the same store; attempts that they alone answered are theirs.
        """
        self._policy = policy
        self._store = store
        self._trainer = trainer
        self._publisher = publisher
        self._checkpoints = checkpoints
        self._progress = progress
        self._metrics = metrics
        self._rollbacks = rollbacks
        self._stored = stored
        self._demonstrations = demonstrations or Demonstrations(policy)
        self._worklist = Worklist(policy, store=store, progress=progress, one_of_several=one_of_several)
        self._judges = judges
        self._builder = Builder(
            policy,
            store=store,
            progress=progress,
            rollbacks=rollbacks,
            stored=stored,
            vocabulary=vocabulary,
            judges=judges,
        )
        self._step = 0
        """The newest that is recorded, trained or not."""
        self._path: list[int] = [0]
        """The versions that the present weights are made of, the present one last."""
        self._settled = False
        """Whether the trainer holds those weights: not in the middle of a step, nor after one that failed."""
        self._untouched = True
        """Whether the trainer holds the model that the run started from; never after a step that was only begun."""
        self._let_go = False
        """Whether the trainer was closed, because nothing is to be trained."""
        self._collecting_since = time.monotonic()
        self._wait_s = 1.0

    async def run(self) -> None:
        failures = 0
        recovered = False
        self._rollbacks.paused = await self._paused_before()
        while True:
            try:
                if await self._go_back() or self._rollbacks.changed:
                    recovered = self._rollbacks.changed = False
                if not recovered:
                    served = await self._recover(restart=failures > 0)
                    recovered = True
                    self._rollbacks.end(_refusal(served))
                elif await self._has_ended():
                    await self._rest()
                elif self._rollbacks.paused is not None:
                    await self._rest_while_held(self._rollbacks.paused)
                elif (shown := self._demonstrations.build(self._step + 1)) is not None:
                    await self._train(self._step + 1, *shown)
                    failures = 0
                elif (attempts := await self._next_attempts(self._policy.groups_per_step)) is not None:
                    await self._take_step(attempts)
                    failures = 0
            except TrainingError as error:
                failures, recovered = failures + 1, False
                self._progress.say(f"the trainer failed ({error}); restarting it from the last checkpoint")
                _log.error("trainer failed: %s", error)
                if failures >= _MAX_FAILURES and isinstance(error, TrainerDiedError):
                    await self._wait("the trainer", error, _rest_s(failures))
                elif failures >= _MAX_FAILURES:
                    await self._pause(f"the trainer failed {failures} times in a row, last: {error}", _rest_s(failures))
            except StoreError as error:
                # Unless it was only looked at, nobody knows how far the step has come: the records do.
                recovered = recovered and self._progress.phase is Phase.COLLECTING
                await self._wait("the store", error)
            except EngineError as error:
                recovered = False
                await self._wait("the engine", error)
                await self._until_the_engine_is_there()
            except Exception as error:
                failures, recovered = failures + 1, False
                _log.exception("step %d ended in an error that nobody has thought of", self._step + 1)
                self._progress.say(f"{type(error).__name__} ({error}); going on from what is recorded")
                if failures >= _MAX_FAILURES:
                    reason = f"{failures} errors in a row, last: {type(error).__name__}: {error}"
                    await self._pause(reason, _rest_s(failures))
            else:
                self._wait_s = 1.0
            if self._publisher.refused_in_a_row > 1:
                await self._pause(f"two publications in a row were refused, last: {self._publisher.last_reason}")
                self._publisher.refused_in_a_row = 0

    async def save(self) -> None:
        """Write a checkpoint of the present weights unless there is one.

        Raises:
            TrainingError: the trainer is in the middle of something, or cannot.
        """
        if self._let_go:
            return
        if not self._settled:
            raise TrainingError("the trainer is in the middle of a step")
        version = self._path[-1]
        if version > 0 and version not in self._checkpoints.steps():
            await self._trainer.save(self._checkpoints.path(version), version)
            self._checkpoints.prune(self._path)

    async def _save_if_possible(self) -> None:
        """A step is recorded by now: where its checkpoint cannot be written, a restart only takes longer."""
        try:
            await self.save()
        except CheckpointError as error:
            sentence = f"no checkpoint of step {self._step} ({error}); the next one is tried, and training goes on"
            self._progress.say(sentence)
            _log.error("%s", sentence)

    async def _recover(self, *, restart: bool) -> PolicyVersion:
        """Bring the trainer to the weights that the records lead to, and return what came of publishing them."""
        self._settled = False
        restart = restart or self._let_go
        if restart:
            await self._trainer.restart()
            self._let_go = False
        fresh, self._untouched = restart or self._untouched, False
        recovered = await recover(
            self._policy.name,
            store=self._store,
            trainer=self._trainer,
            checkpoints=self._checkpoints,
            progress=self._progress,
            fresh=fresh,
        )
        self._untouched = recovered.path == (0,)
        self._step, self._path, self._settled = recovered.step, list(recovered.path), True
        version = self._path[-1]
        self._progress.enter(Phase.PUBLISHING, f"version {version}")
        asked = self._rollbacks.pending
        served = await self._publisher.publish(
            version=version, step=version, asked_for=asked is not None and asked.recorded
        )
        self._say_if_refused(served)
        if version == self._step > 0:
            await self._metrics.step_ended(self._step)
        await self._progress.finish_step(self._step)
        return served

    async def _go_back(self) -> bool:
        """Record the rollback that is asked for and serve what is kept of it; True when it is to be recovered to."""
        asked = self._rollbacks.pending
        if asked is None or asked.recorded:
            return asked is not None
        try:
            await record_rollback(self._store, self._policy.name, asked.version, checkpoints=self._checkpoints.steps())
        except LightningError as error:
            self._rollbacks.end(error)
            return False
        asked.recorded = True
        sentence = f"rolled back to version {asked.version}"
        self._progress.say(sentence)
        _log.warning("%s", sentence)
        try:
            await self._publisher.serve_kept(asked.version)
        except LightningError as error:  # the trainer makes it again
            _log.warning("version %d is not served from its kept weights: %s", asked.version, error)
        return True

    async def _has_ended(self) -> bool:
        if not self._policy.train:
            # Its weights are proven served: what they were proven with is only memory now.
            await self._trainer.close()
            self._let_go = True
            self._progress.enter(Phase.SERVING, "train = false: recorded and served, never trained")
            await self._progress.wake_waiters()
            return True
        last_step = self._policy.last_step
        if last_step is not None and self._step >= last_step:
            await self._finish()
            return True
        return False

    async def _rest(self, longest_s: float | None = None) -> None:
        """Return when a rollback was asked for and recorded, a recorded step was taken out, or after that time."""
        until = None if longest_s is None else asyncio.get_running_loop().time() + longest_s
        while not await self._go_back():
            if self._rollbacks.changed:
                self._rollbacks.end()
                return
            try:
                async with asyncio.timeout_at(until):
                    await self._rollbacks.wait()
            except TimeoutError:
                return

    async def _paused_before(self) -> str | None:
        """Why somebody paused it in an earlier life of the daemon; a store that cannot be read now is waited for."""
        while True:
            try:
                return await self._store.scan(lambda connection: pauses.reason_of(connection, self._policy.name))
            except StoreError as error:
                await self._wait("the store", error)

    async def _rest_while_held(self, reason: str) -> None:
        self._progress.enter(Phase.HELD, f"{reason}; `lightning-trainer resume` lets it go on")
        while self._rollbacks.paused is not None and not await self._go_back() and not self._rollbacks.changed:
            await self._rollbacks.wait()

    async def _next_attempts(self, groups: int) -> tuple[Attempt, ...] | None:
        """Return the attempts of the next step; None when a rollback is asked for before there are enough."""
        self._progress.enter(Phase.COLLECTING)
        await self._progress.want_groups(groups)
        self._collecting_since = time.monotonic()
        while True:
            self._stored.clear()
            if self._rollbacks.pending is not None or self._rollbacks.changed or self._rollbacks.paused is not None:
                return None
            looking_since = time.monotonic()
            collection = await self._collect()
            took_s = time.monotonic() - looking_since
            self._progress.waiting_groups = collection.waiting
            self._progress.waiting_attempts = self._worklist.waiting
            self._progress.ready_groups = len(collection.ready)
            if self._judges is not None:
                # Of this step alone: what a judge may spend is a step's.
                self._judges.begin((members for _, members in collection.ready[:groups]), self._step + 1)
            if attempts := collection.next_step(groups):
                return attempts
            # However many attempts wait: nobody looks through them for more than a small share of the time.
            await asyncio.sleep(_REST_AFTER_LOOK * took_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(_LOOK_AGAIN_S, _REST_WHEN_IDLE * took_s)):
                    await self._stored.wait()

    async def _collect(self) -> Collection:
        return await self._worklist.collect(self._policy.at_step(self._step + 1).algorithm.needs_baseline)

    async def _take_step(self, attempts: tuple[Attempt, ...]) -> None:
        step = self._step + 1
        collecting_since, began = self._collecting_since, time.monotonic()
        filled = await self._filled((*attempts, *self._worklist.dropped), step)
        if filled is None:
            return
        attempts, build = filled
        metrics = {
            **group_metrics(build.groups),
            **judge_metrics(build.corrections),
            **(sampling_metrics(build.batch, await self._served()) if build.batch else {}),
            "attempts/incomplete": self._worklist.gave_up_on(attempts),
        }
        seconds = {"rollout": began - collecting_since, "build": time.monotonic() - began}
        await self._train(step, build, metrics, attempts=attempts, seconds=seconds)

    async def _train(
        self,
        step: int,
        build: Build,
        metrics: Mapping[str, float],
        *,
        attempts: Sequence[Attempt] = (),
        seconds: Mapping[str, float] | None = None,
    ) -> None:
        """Record the step, train its batch if it has one, and publish what came of it."""
        for problem in build.problems:
            self._progress.say(problem)
        await self._progress.want_groups(self._policy.groups_per_step)
        await self._store.assign(
            build.batch,
            policy=self._policy.name,
            step=step,
            attempt_ids=[attempt.attempt_id for attempt in attempts],
            ledger=build.ledger,
            state=StepState.ASSIGNED if build.batch else StepState.SKIPPED,
            metrics={**metrics, **await self._store.measures()},
        )
        self._step = step
        if self._judges is not None:
            self._judges.taken(attempts)
        if build.batch is None:
            reasons = sorted({group.refused_reason for group in build.groups if group.refused_reason})
            self._progress.say(
                f"step {step} trained nothing: {'; '.join(reasons) or 'no group had a spread of rewards'}"
            )
            await self._metrics.step_ended(step)
            await self._progress.finish_step(step)
            return
        self._progress.enter(Phase.TRAINING, f"step {step}: {len(build.batch.samples)} samples")
        self._settled = self._untouched = False
        report = await self._trainer.step(build.batch)
        report = replace(report, seconds={**(seconds or {}), **report.seconds})
        await self._store.finish_step(self._policy.name, report, StepState.TRAINED)
        self._path.append(step)
        self._settled = True
        if step % self._policy.checkpoint_every == 0:
            await self._save_if_possible()
        self._progress.enter(Phase.PUBLISHING, f"version {step}")
        self._say_if_refused(await self._publisher.publish(version=step, step=step))
        await self._metrics.step_ended(step)
        await self._progress.finish_step(step)

    async def _filled(self, attempts: tuple[Attempt, ...], step: int) -> tuple[tuple[Attempt, ...], Build] | None:
        """Build, with further groups while the algorithm asks for them and any come; nothing is assigned here.

        None when a rollback is asked for meanwhile.
        """
        taken = self._policy.groups_per_step
        while True:
            self._progress.enter(Phase.BUILDING, f"step {step}")
            oldest = oldest_allowed(await self._served(), self._policy.max_staleness)
            build = await self._builder.build(attempts, step, oldest)
            if build is None:
                return None
            wanted = groups_wanted(self._policy.at_step(step), taken, build.groups)
            if wanted == taken:
                return attempts, build
            await self._progress.want_groups(wanted)
            try:
                async with asyncio.timeout(self._policy.group_timeout_s):
                    more = await self._next_attempts(wanted)
            except TimeoutError:
                self._progress.say(
                    f"step {step}: dynamic sampling asked for {wanted - taken} more groups, and none came within "
                    f"group_timeout_s = {self._policy.group_timeout_s:g}; the step goes on with what it has"
                )
                return attempts, build
            if more is None:
                return None
            attempts, taken = (*more, *self._worklist.dropped), wanted

    def _say_if_refused(self, version: PolicyVersion) -> None:
        if (refusal := _refusal(version)) is not None:
            self._progress.say(str(refusal))

    async def _served(self) -> tuple[int, ...]:
        # Of what a rollback took back there may be some among the newest; nothing older than those plays a part.
        newest = (self._policy.max_staleness or 0) + _RECENT_VERSIONS
        versions = await self._store.served_versions(self._policy.name, newest=newest)
        recent = self._path[bisect_left(self._path, versions[0]) :] if versions else []
        return served(versions, frozenset(recent))

    async def _finish(self) -> None:
        await self._save_if_possible()
        self._progress.enter(Phase.FINISHED, f"{self._step} steps are done, the last that were asked for")
        await self._progress.wake_waiters()

    async def _wait(self, what: str, error: LightningError, wait_s: float | None = None) -> None:
        """Say what is waited for and wait; without a time, longer from one time to the next."""
        if wait_s is None:
            wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, _LONGEST_WAIT_S)
        sentence = f"training waits for {what} ({error}); serving goes on"
        self._progress.say(sentence)
        self._progress.enter(Phase.WAITING, str(error))
        _log.error("%s; the next try is in %.0f s", sentence, wait_s)
        await asyncio.sleep(wait_s)

    async def _until_the_engine_is_there(self) -> None:
        while True:
            try:
                return await self._publisher.engine_ready(_LONGEST_WAIT_S)
            except EngineError:
                await asyncio.sleep(_LOOK_AGAIN_S)

    async def _pause(self, reason: str, rest_s: float | None = None) -> None:
        """Say so, and wait until somebody rolls back, or until that time has passed."""
        again = "" if rest_s is None else f" (it is tried again in {rest_s:.0f} s)"
        self._progress.say(
            f"training is paused: {reason}; serving and capture go on, roll back to a version or restart the daemon to "
            f"try again{again}"
        )
        _log.error("training is paused: %s%s", reason, again)
        self._progress.enter(Phase.PAUSED, f"{reason}{again}")
        self._rollbacks.end(TrainingError(f"training is paused: {reason}"))
        await self._progress.wake_waiters()
        await self._rest(rest_s)


def _rest_s(failures: int) -> float:
    return min(_LONGEST_REST_S, _FIRST_REST_S * 2.0 ** min(failures - _MAX_FAILURES, 32))


def _refusal(version: PolicyVersion) -> PublicationError | None:
    if version.state is VersionState.LIVE:
        return None
    return PublicationError(f"{version.name} was refused, and what was served before goes on: {version.reason}")

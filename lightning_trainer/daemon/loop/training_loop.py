"""The training loop of one policy: named states with a method each; after any crash it goes on from what was stored.

Invariant: what the loop does next follows from the records and from what people asked for, never from what it did last;
so a crash, a failure and a restart all lead through ``RECOVERING`` to the same weights. A rollback leads the same way
to another version: it is recorded, and then recovered to.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum

from lightning_trainer.daemon.loop.checkpoints import CheckpointFolder
from lightning_trainer.daemon.loop.context import LoopContext
from lightning_trainer.daemon.loop.demonstrations import Demonstrations
from lightning_trainer.daemon.loop.steps import Steps
from lightning_trainer.daemon.loop.turn import Turn
from lightning_trainer.daemon.loop.weights import Weights, refusal
from lightning_trainer.daemon.publication.publishing import Publisher
from lightning_trainer.daemon.watching.progress import Phase
from lightning_trainer.errors import (
    EngineError,
    LightningError,
    RollbackError,
    SettingsChangedError,
    StoreError,
    TrainerDiedError,
    TrainingError,
    TurnLostError,
)
from lightning_trainer.store.tables import pauses
from lightning_trainer.store.tables.steps import last_done
from lightning_trainer.training.remote import TrainerClient
from lightning_trainer.types import VersionState
from lightning_trainer.versions.rollback import can_be_gone_to, record_promotion, record_rollback

_log = logging.getLogger(__name__)

_MAX_FAILURES = 3
"""Failures of the trainer, or unexpected errors, in a row; then the loop rests before it tries again."""
_LONGEST_WAIT_S = 30.0
"""Between two tries of the store or the engine, which are waited for however long it takes."""
_FIRST_REST_S, _LONGEST_REST_S = 60.0, 1800.0
"""After failures in a row, which another try may only repeat."""
_LOOK_AGAIN_S = 1.0
"""How often the loop looks for an engine that is down, or at what another daemon trains."""


class LoopState(StrEnum):
    """What the loop does; ``Phase`` says how far it is with that."""

    RECOVERING = "recovering"
    """The weights are brought to where the records lead: at the start, after a failure, and for a rollback."""
    ENDED = "ended"
    """The last step is done, or the policy is never trained; the loop waits for a rollback."""
    HELD = "held"
    """Paused by a person until it is resumed."""
    IMITATING = "imitating"
    """The next step is shown a file."""
    FOLLOWING = "following"
    """Another daemon of the store trains; what it publishes is served here too."""
    SAMPLING = "sampling"
    """The next step takes attempts, which are collected."""


TRANSITIONS: Mapping[LoopState, frozenset[LoopState]] = {
    LoopState.RECOVERING: frozenset(LoopState),
    LoopState.ENDED: frozenset({LoopState.ENDED, LoopState.RECOVERING, LoopState.FOLLOWING}),
    LoopState.FOLLOWING: frozenset({LoopState.FOLLOWING, LoopState.RECOVERING}),
    LoopState.HELD: frozenset(LoopState) - {LoopState.ENDED},
    LoopState.IMITATING: frozenset(LoopState),
    LoopState.SAMPLING: frozenset(LoopState),
}
"""The states that may follow each state; if it may follow itself, it may be chosen again."""


class TrainingLoop:
    """Trains one policy until cancelled. After ``max_steps``, or when two publications were refused, it rests until
    someone asks for a rollback. It waits for a store, an engine or a trainer that is down, and what fails again and
    again it tries after growing pauses (and says why): serving and capture must not end because of this loop."""

    def __init__(
        self,
        context: LoopContext,
        *,
        trainer: TrainerClient,
        publisher: Publisher,
        checkpoints: CheckpointFolder,
        turn: Turn | None = None,
        demonstrations: Demonstrations | None = None,
    ) -> None:
        """
        Args:
            turn: the right to train, in a store that other daemons share; None: it is always ours.
            demonstrations: of the policy's stages; None: those of its configuration, not read yet.
        """
        policy, store = context.policy, context.store
        self._policy = policy
        self._store = store
        self._publisher = publisher
        self._progress = context.progress
        self._metrics = context.metrics
        self._checkpoints = checkpoints
        self._rollbacks = context.rollbacks
        self._turn = turn or Turn(policy.name, store=store, holder="", rollbacks=context.rollbacks)
        self._demonstrations = demonstrations or Demonstrations(policy)
        self._weights = Weights(context, trainer=trainer, publisher=publisher, checkpoints=checkpoints)
        self.steps = Steps(context, self._weights)
        self._actions: Mapping[LoopState, Callable[[], Awaitable[None]]] = {
            LoopState.RECOVERING: self._recover,
            LoopState.ENDED: self._rest,
            LoopState.HELD: self._rest_while_held,
            LoopState.IMITATING: self._imitate,
            LoopState.SAMPLING: self._sample,
            LoopState.FOLLOWING: self._follow,
        }
        self.state = LoopState.RECOVERING
        self._recovered = False
        """Whether the trainer holds the weights that the records lead to."""
        self._failures = 0
        """Failures of the trainer, or unexpected errors, since the last step or look."""
        self._wait_s = 1.0
        self._promoted = False
        """Whether a version that was held back has gone live since the loop began to rest."""

    async def run(self) -> None:
        """Go from state to state until cancelled."""
        self._rollbacks.paused = await self._paused_before()
        while True:
            try:
                following = await self._next_state()
                assert following in TRANSITIONS[self.state], f"{self.state} -> {following}"
                self.state = following
                await self._actions[following]()
            except TrainingError as error:
                await self._trainer_failed(error)
            except SettingsChangedError as error:
                self._recovered = False
                await self._pause(str(error))
            except TurnLostError as error:
                self._recovered = False
                self._turn.lose()
                self._progress.say(str(error))
            except StoreError as error:
                # Unless the loop was only collecting attempts, only the records tell how far the step has come.
                self._recovered = self._recovered and self._progress.phase is Phase.COLLECTING
                await self._wait("the store", error)
            except EngineError as error:
                self._recovered = False
                await self._wait("the engine", error)
                await self._until_the_engine_is_there()
            except Exception as error:
                await self._failed(error)
            else:
                self._wait_s = 1.0
            if self._publisher.refused_in_a_row > 1:
                await self._pause(f"two publications in a row were refused, last: {self._publisher.last_reason}")
                self._publisher.refused_in_a_row = 0

    async def save(self) -> None:
        """Write a checkpoint of the present weights unless there is one.

        Raises:
            TrainingError: the trainer is in the middle of a step, or cannot write it.
        """
        if self._turn.ours:
            await self._weights.save()

    async def goes_back(self) -> bool:
        """Whether a person asks for a version that can be had; any other request is refused now, and ends no canary."""
        asked = self._rollbacks.pending
        if asked is None or asked.recorded:
            return asked is not None
        try:
            await can_be_gone_to(
                self._store,
                self._policy.name,
                asked.version,
                promote=asked.promote,
                checkpoints=self._checkpoints.steps(),
            )
        except RollbackError as error:
            self._rollbacks.end(error)
            return False
        return True

    async def _next_state(self) -> LoopState:
        if not self._turn.ours:
            self._recovered = False
            if not await self._turn.take():
                return LoopState.FOLLOWING
        if await self._go_back() or self._rollbacks.changed:
            self._recovered = self._rollbacks.changed = False
        if not self._recovered:
            return LoopState.RECOVERING
        if await self._has_ended():
            return LoopState.ENDED
        if self._rollbacks.paused is not None:
            return LoopState.HELD
        return LoopState.IMITATING if self._demonstrations.has(self.steps.next_step) else LoopState.SAMPLING

    # -- one method a state ------------------------------------------------------------------------------------------

    async def _recover(self) -> None:
        published = await self._weights.recover(restart=self._failures > 0)
        self._recovered = True
        self._rollbacks.end_recorded(refusal(published))

    async def _follow(self) -> None:
        done = await self._store.scan(lambda connection: last_done(connection, self._policy.name))
        following = f"the daemon {self._turn.other} trains this policy; this one records and serves"
        self._progress.enter(*(self._end_after(done) or (Phase.FOLLOWING, following)))
        await self._weights.close()
        if (not_served := await self._publisher.follow()) is not None:
            self._progress.say(not_served)
        await self._progress.want_groups(self._policy.groups_per_step)
        await self._metrics.step_ended(await self._published(done))
        await self._progress.finish_step(done)
        self._failures = 0
        await asyncio.sleep(_LOOK_AGAIN_S)

    async def _published(self, done: int) -> int:
        """Return the last step of which everything was measured: the newest step's version may still be on its way."""
        version = await self._store.version(self._policy.name, done)
        return done if version is not None and version.state is not VersionState.TRAINED else done - 1

    async def _rest(self, longest_s: float | None = None) -> None:
        """Return when a rollback was asked for and recorded, a version was promoted, a recorded step was taken out, or
        ``longest_s`` have passed."""
        until = None if longest_s is None else asyncio.get_running_loop().time() + longest_s
        self._promoted = False
        while not await self._go_back():
            if self._rollbacks.changed or self._promoted:
                return
            try:
                async with asyncio.timeout_at(until):
                    await self._rollbacks.wait()
            except TimeoutError:
                return

    async def _rest_while_held(self) -> None:
        self._progress.enter(Phase.HELD, f"{self._rollbacks.paused}; `lightning-trainer resume` lets it go on")
        while self._rollbacks.paused is not None and not await self._go_back() and not self._rollbacks.changed:
            await self._rollbacks.wait()

    async def _imitate(self) -> None:
        if self._policy.takes_attempts_after(self.steps.next_step):
            await self.steps.enroll()  # attempts that end meanwhile are for a later stage
        await self.steps.train(*self._demonstrations.build(self.steps.next_step))
        self._failures = 0

    async def _sample(self) -> None:
        attempts = await self.steps.next_attempts(self._policy.groups_per_step)
        if attempts is not None:
            await self.steps.take(attempts)
            self._failures = 0

    # -- what decides on the next state ------------------------------------------------------------------------------

    async def _go_back(self) -> bool:
        """Record the rollback that is asked for, and serve the version if its weights are kept; return whether the loop
        has to recover to it."""
        asked = self._rollbacks.pending
        if asked is None or asked.recorded:
            return asked is not None
        try:
            if asked.promote and await self._promote_what_is_held(asked.version):
                return False
            record = record_promotion if asked.promote else record_rollback
            await record(self._store, self._policy.name, asked.version, checkpoints=self._checkpoints.steps())
        except LightningError as error:
            self._rollbacks.end(error)
            if isinstance(error, TrainingError):  # a loop that rests has to recover, too
                self._rollbacks.look_again()
            return False
        except Exception as error:  # tried again and again, it would keep the loop from everything else
            _log.exception("the rollback to version %s could not be recorded", asked.version)
            self._rollbacks.end(RollbackError(f"a bug of the daemon's own: {type(error).__name__}: {error}"))
            return False
        asked.recorded = True
        sentence = f"{'promoted' if asked.promote else 'rolled back to'} version {asked.version}"
        self._progress.say(sentence)
        _log.warning("%s", sentence)
        try:
            await self._metrics.look_back()
            await self._publisher.serve_kept(asked.version)
        except (LightningError, OSError) as error:  # the trainer makes it again
            _log.warning("version %d is not served from its kept weights: %s", asked.version, error)
        return True

    async def _promote_what_is_held(self, version: int) -> bool:
        """Serve a version if the trainer holds its weights; return False if it does not.

        Raises:
            LightningError: engine or trainer failed on it.
        """
        if not self._weights.holds(version):
            return False
        live = await self._store.live_version(self._policy.name)
        if live is not None and live.version == version:  # its canary ended for this request
            self._rollbacks.end()
            return True
        phase, detail = self._progress.phase, self._progress.detail
        try:
            published = await self._weights.publish_again()
        finally:
            self._progress.enter(phase, detail)  # the loop was resting, and rests on
        if published.state is VersionState.LIVE:
            self._promoted = True
            self._progress.say(f"version {version} was promoted by a person")
        self._rollbacks.end(refusal(published))
        return True

    async def _has_ended(self) -> bool:
        ended = self._end_after(self._weights.step)
        if ended is None:
            return False
        await (self._weights.save_if_possible() if self._policy.train else self._weights.close())
        self._progress.enter(*ended)
        await self._progress.wake_waiters()
        return True

    def _end_after(self, step: int) -> tuple[Phase, str] | None:
        """Return the phase and the reason if there is nothing to train after a step; None while there is."""
        if not self._policy.train:
            return Phase.SERVING, "train = false: recorded and served, never trained"
        last_step = self._policy.last_step
        if last_step is None or step < last_step:
            return None
        return Phase.FINISHED, f"{step} steps are done, the last that were asked for"

    async def _paused_before(self) -> str | None:
        """Return why training was paused in an earlier life of the daemon; wait for a store that cannot be read now."""
        while True:
            try:
                return await self._store.scan(lambda connection: pauses.reason_of(connection, self._policy.name))
            except StoreError as error:
                await self._wait("the store", error)

    # -- failures ----------------------------------------------------------------------------------------------------

    async def _trainer_failed(self, error: TrainingError) -> None:
        self._failures, self._recovered = self._failures + 1, False
        self._progress.say(f"the trainer failed ({error}); restarting it from the last checkpoint")
        _log.error("trainer failed: %s", error)
        if self._failures < _MAX_FAILURES:
            return
        if isinstance(error, TrainerDiedError):
            await self._wait("the trainer", error, _rest_s(self._failures))
        else:
            reason = f"the trainer failed {self._failures} times in a row, last: {error}"
            await self._pause(reason, _rest_s(self._failures))

    async def _failed(self, error: Exception) -> None:
        self._failures, self._recovered = self._failures + 1, False
        _log.error("step %d ended in an unexpected error", self.steps.next_step, exc_info=error)
        self._progress.say(f"{type(error).__name__} ({error}); going on from what is recorded")
        if self._failures >= _MAX_FAILURES:
            reason = f"{self._failures} errors in a row, last: {type(error).__name__}: {error}"
            await self._pause(reason, _rest_s(self._failures))

    async def _wait(self, what: str, error: LightningError, wait_s: float | None = None) -> None:
        """Say what the loop waits for and wait ``wait_s``; if that is None, longer each time. Meanwhile people may ask
        for another version, except while the store is down, since then nothing can be recorded."""
        if wait_s is None:
            wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, _LONGEST_WAIT_S)
        sentence = f"training waits for {what} ({error}); serving goes on"
        self._progress.say(sentence)
        self._progress.enter(Phase.WAITING, str(error))
        _log.error("%s; the next try is in %.0f s", sentence, wait_s)
        if isinstance(error, StoreError) or not self._turn.ours:  # a daemon that follows passes requests on
            return await asyncio.sleep(wait_s)
        self._rollbacks.end_recorded(TrainingError(f"it is recorded, and waits for {what}: {error}"))
        await self._rest(wait_s)

    async def _until_the_engine_is_there(self) -> None:
        """Return when the engine is ready, a rollback was asked for and recorded, or a recorded step was taken out."""
        while not (self._turn.ours and (await self._go_back() or self._rollbacks.changed)):
            try:
                return await self._publisher.engine_ready(_LOOK_AGAIN_S)
            except EngineError:
                await asyncio.sleep(_LOOK_AGAIN_S)

    async def _pause(self, reason: str, rest_s: float | None = None) -> None:
        """Say that training is paused, and wait until a rollback is asked for, or until ``rest_s`` have passed."""
        again = "" if rest_s is None else f" (it is tried again in {rest_s:.0f} s)"
        self._progress.say(
            f"training is paused: {reason}; serving and capture go on, roll back to a version or restart the daemon to "
            f"try again{again}"
        )
        _log.error("training is paused: %s%s", reason, again)
        self._progress.enter(Phase.PAUSED, f"{reason}{again}")
        self._rollbacks.end_recorded(TrainingError(f"training is paused: {reason}"))
        await self._progress.wake_waiters()
        await self._rest(rest_s)


def _rest_s(failures: int) -> float:
    return min(_LONGEST_REST_S, _FIRST_REST_S * 2.0 ** min(failures - _MAX_FAILURES, 32))

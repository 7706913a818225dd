"""Keeps one engine alive: after a crash or a hang, it is restarted with the live versions.

An engine that dies again and again is given up: callers learn this at once, and it is retried after growing pauses.

Invariant: ``ready`` returns only while the engine serves the live version. A version becomes live when its publication
is accepted; one that crashes the engine is refused, and the previous one is served again.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from lightning_trainer.errors import EngineError, PublicationError
from lightning_trainer.serving.engine import EngineProcess
from lightning_trainer.serving.engine_client import Engine
from lightning_trainer.serving.lifecycle import Backoff, EngineState, EngineStatus, Heartbeat
from lightning_trainer.serving.publication import Publication, PublicationReport
from lightning_trainer.serving.settings import EngineSettings

logger = logging.getLogger(__name__)

_PUBLISH_TRIES = 2
"""An engine that dies during a publication may have died for another reason; if it dies twice, it did not."""


class EngineSupervisor:
    """A supervised engine, restarted as needed. The gateway uses ``base_url``, ``headers``, and ``ready``."""

    def __init__(
        self,
        settings: EngineSettings,
        *,
        live: Sequence[Publication] = (),
        backoff: Backoff | None = None,
        heartbeat: Heartbeat | None = None,
        make: Callable[[EngineSettings], Engine] = EngineProcess,
    ) -> None:
        """Store the settings; nothing starts before ``start``.

        Args:
            live: published after each start, at most one per policy; a policy without one is served from the model
                folder itself, as version 0.
            make: returns a new, unstarted engine, on this machine or on a cluster.
        """
        self.settings = settings
        self._make = make
        self._backoff = backoff or Backoff()
        self._heartbeat = heartbeat or Heartbeat()
        self._live = {publication.policy: publication for publication in live}
        self._resumed: set[str] = set()
        """Policies whose version comes from an earlier life of the daemon, until the engine has served once."""
        self.left_out: dict[str, str] = {}
        """Why a resumed version is not served, by policy."""
        self._engine: Engine | None = None
        self._changed = asyncio.Condition()
        self._status = EngineStatus(EngineState.STOPPED, None, {}, 0, None, None)
        self._task: asyncio.Task[None] | None = None
        self._publishing = asyncio.Lock()
        self._ready_at: float | None = None
        """When the current life began to serve."""
        self._awake = asyncio.Event()
        self._awake.set()

    @property
    def state(self) -> EngineState:
        """Return the state of the engine."""
        return self._status.state

    @property
    def status(self) -> EngineStatus:
        """Return the state of the engine, with what is known about it."""
        return self._status

    @property
    def live(self) -> Mapping[str, Publication]:
        """Return the publication that each policy serves, or will serve after the next restart."""
        return self._live

    @property
    def base_url(self) -> str:
        """Return the base URL of the ready engine; call it for every request, because a restart changes it."""
        return self._ready_engine().base_url

    @property
    def headers(self) -> Mapping[str, str]:
        """Return the headers of the ready engine, whose token changes with every restart."""
        return self._ready_engine().headers

    def resume(self, publication: Publication) -> None:
        """Serve a version of an earlier life of the daemon from the first start on; call it before ``start``. The
        model may have changed since: if the version is refused, version 0 is served, and ``left_out`` says why."""
        self._live[publication.policy] = publication
        self._resumed.add(publication.policy)

    async def start(self) -> None:
        """Start the engine, supervise it from now on, and return when it serves.

        Raises:
            EngineError: it does not start. Only an engine that was killed is retried: one that ends by itself was
                started with something wrong.
        """
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="engine-supervisor")
            self._status = replace(self._status, state=EngineState.STARTING)  # at once: the last life's may be FAILED
        await self.ready(math.inf)  # each life has its own time limit, which begins with its turn (``gpu_turns``)

    async def ready(self, timeout_s: float) -> None:
        """Wait until the engine serves the live version.

        Raises:
            EngineError: it does not within ``timeout_s``, or never will.
        """
        if self._status.state is EngineState.READY and self._awake.is_set():
            return  # the hot path: every call goes through here
        settled = (EngineState.READY, EngineState.FAILED)
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self._awake.is_set() and self._status.state in settled)
        except TimeoutError:
            if not self._awake.is_set():
                raise EngineError(f"the trainer has had the engine's GPU for over {timeout_s:g} s") from None
            because = f" ({self._status.last_error})" if self._status.last_error else ""
            raise EngineError(f"the engine has been {self._status.state} for over {timeout_s:g} s{because}") from None
        if self._status.state is EngineState.FAILED:
            raise EngineError(self._status.last_error or "the engine failed")

    async def publish(self, publication: Publication) -> PublicationReport:
        """Serve a version from now on, also after a restart; the report says if it is refused. The file of a live
        version must be kept.

        Raises:
            EngineError: no engine serves anything.
            PublicationError: the engine could not read the publication.
        """
        async with self._publishing:
            for _ in range(_PUBLISH_TRIES):
                await self.ready(self.settings.startup_timeout_s)
                engine = self._ready_engine()
                try:
                    report = await engine.publish(publication)
                    break
                except EngineError as error:
                    logger.warning("the engine ended while it loaded %s: %s", publication.name, error)
                    version = self._versions()[publication.policy]
                    report = PublicationReport(False, version, f"{error}; it happened {_PUBLISH_TRIES} times")
                    await engine.stop()
                    await self._until_not(engine)
            else:
                await self.ready(self.settings.startup_timeout_s)
            if report.accepted:
                self._live[publication.policy] = publication
            await self._set(versions=self._versions())
            return report

    async def bring(self, publication: Publication) -> None:
        """Transfer the file to the engine's machine before calls are held for it; if that fails, ``publish`` reports
        why."""
        if self._status.state is EngineState.READY and self._engine is not None:
            with contextlib.suppress(EngineError, PublicationError):
                await self._engine.bring(publication)

    async def restore(self, policy: str, before: Publication | None) -> None:
        """Go back to what was served before the live version: at once, or by a restart if that fails.

        Args:
            before: None: version 0, which only a restart can serve.

        Raises:
            EngineError: no engine serves anything.
        """
        async with self._publishing:
            if before is None:
                self._live.pop(policy, None)
            else:
                self._live[policy] = before
            await self.ready(self.settings.startup_timeout_s)
            engine = self._ready_engine()
            if before is None or not await _takes(engine, before):
                await engine.stop()
                await self._until_not(engine)
                await self.ready(self.settings.startup_timeout_s)
            await self._set(versions=self._versions())

    async def sleep(self, level: int) -> None:
        """Release the GPU memory until ``wake``, whatever happens to the engine: none is started meanwhile.

        A starting engine is waited for; one that takes too long, or cannot go to sleep, is ended, which frees as much.
        """
        async with self._publishing:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.startup_timeout_s), self._changed:
                    await self._changed.wait_for(self._started_or_rests)
            self._awake.clear()
            engine = self._engine
            if engine is None:
                return
            if self._status.state is not EngineState.READY:
                await engine.stop()
                return
            try:
                await engine.sleep(level)
            except Exception as error:  # whatever the error, the trainer needs the memory
                logger.warning("the engine does not go to sleep and is ended: %s", error)
                await engine.stop()
                await self._until_not(engine)

    async def wake(self) -> None:
        """Take the memory back; an engine that died meanwhile, or does not wake, is restarted."""
        async with self._publishing:
            engine = self._engine
            if self._status.state is EngineState.READY and engine is not None:
                try:
                    await engine.wake()
                except Exception as error:  # whatever the error, a new start has the memory that the trainer gave back
                    logger.warning("the engine does not wake and is restarted: %s", error)
                    await engine.stop()
                    await self._until_not(engine)
            self._awake.set()
            await self._set()

    async def hold(self, publication: Publication) -> PublicationReport:
        """Serve an old adapter next to the live one until ``drop``, or until the engine's next restart.

        Raises:
            EngineError: no engine serves anything.
            PublicationError: it serves no adapters.
        """
        await self.ready(self.settings.startup_timeout_s)
        return await self._ready_engine().hold(publication)

    async def drop(self, policy: str, version: int) -> None:
        """Unload an adapter that ``hold`` loaded, if there is an engine.

        Raises:
            EngineError: it died during the call.
        """
        if self._status.state is EngineState.READY:
            await self._ready_engine().drop(policy, version)

    async def stop(self) -> None:
        """End the engine and stop supervising it; returns when nothing of it is left."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._engine is not None:
            await self._engine.stop()
            self._engine = None
        await self._set(state=EngineState.STOPPED, pid=None, node=None, versions={})

    async def adopt(self, publication: Publication) -> None:
        """Serve the other replicas' versions from the next start on; a running or starting engine is restarted, and no
        longer ready on return."""
        async with self._publishing:
            if self._live.get(publication.policy) == publication:
                return
            self._live[publication.policy] = publication
            if (engine := self._engine) is not None:
                await engine.stop()
                await self._until_not(engine)

    async def _run(self) -> None:
        failures = 0
        while True:
            self._ready_at = None
            # An engine that was given up is not waited for during a retry: it has to come back first.
            if self._status.state is not EngineState.FAILED:
                await self._set(state=EngineState.RESTARTING if self._status.restarts else EngineState.STARTING)
            error = await self._one_life()
            failures = 1 if self._settled() else failures + 1
            logger.error("the engine is gone: %s", error)
            if self._never_starts(failures):
                await self._set(state=EngineState.FAILED, pid=None, node=None, versions={}, last_error=error)
                return
            delay_s, given_up = self._backoff.delay_s(failures), failures > self._backoff.attempts
            if given_up:
                logger.error("the engine failed %d times in a row; the next try is in %.0f s", failures, delay_s)
            await self._set(
                state=EngineState.FAILED if given_up else EngineState.RESTARTING,
                pid=None,
                node=None,
                versions={},
                last_error=error,
                restarts=self._status.restarts + 1,
                retry_at=time.time() + delay_s if given_up else None,
            )
            await asyncio.sleep(delay_s)
            await self._set(retry_at=None)

    def _started_or_rests(self) -> bool:
        """Whether no engine is starting: it serves, or it was given up and is not being retried now."""
        status = self._status
        rests = status.retry_at is not None or status.startup_s is None
        return status.state is EngineState.READY or (status.state is EngineState.FAILED and rests)

    def _settled(self) -> bool:
        """Whether the engine served for long enough; a start that fails is a failure, however long it took."""
        return self._ready_at is not None and time.monotonic() - self._ready_at > self._backoff.settled_s

    def _never_starts(self, failures: int) -> bool:
        """Whether the first start failed for good, because a retry would not fix the cause."""
        if self._status.startup_s is not None:
            return False
        killed = self._engine is not None and self._engine.killed
        return not killed or failures >= self._backoff.first_attempts

    async def _one_life(self) -> str:
        """Start an engine, load the live weights, and return why it ended."""
        await self._awake.wait()
        started = time.monotonic()
        self._engine = engine = self._make(self.settings)
        try:
            await engine.start()
            if not self._awake.is_set():  # ``sleep`` found no process yet that it could end
                raise EngineError("the trainer took the GPU while the engine was starting")
            await self._set(pid=engine.pid, node=engine.node)
            await engine.ready(self.settings.startup_timeout_s)
            for publication in tuple(self._live.values()):
                await self._serve_again(engine, publication)
            self._resumed.clear()
            self._ready_at = time.monotonic()
            startup_s = self._ready_at - started
            served = ", ".join(f"{policy}@v{version}" for policy, version in self._versions().items())
            logger.info("the engine serves %s after %.1f s", served, startup_s)
            await self._set(state=EngineState.READY, versions=self._versions(), startup_s=startup_s)
            return await self._end_of(engine)
        except (EngineError, PublicationError) as error:
            return str(error)
        except Exception as error:  # whatever the error, another start may succeed
            logger.exception("starting or watching the engine failed with an unexpected error")
            return f"{type(error).__name__}: {error}"
        finally:
            (error,) = await asyncio.gather(engine.stop(), return_exceptions=True)
            if error is not None:
                logger.error("the engine's process may not be gone: %r", error)

    async def _serve_again(self, engine: Engine, publication: Publication) -> None:
        resumed = publication.policy in self._resumed
        try:
            report = await engine.publish(publication)
        except PublicationError as error:
            if not resumed:
                raise
            report = PublicationReport(False, 0, str(error))
        if report.accepted:
            return
        if not resumed:
            raise EngineError(f"{publication.name} was live and cannot be served again: {report.reason}")
        del self._live[publication.policy]
        self.left_out[publication.policy] = report.reason or "refused"

    async def _end_of(self, engine: Engine) -> str:
        """Return why the engine ended, or that it no longer answers."""
        missed = 0
        while missed < self._heartbeat.missed:
            await asyncio.wait({engine.exited}, timeout=self._heartbeat.every_s)
            if engine.exited.done():
                return f"the engine ended: {engine.exited.result()}"
            try:
                async with asyncio.timeout(self._heartbeat.patience_s):
                    await engine.version()
                missed = 0
            except (EngineError, PublicationError, TimeoutError):
                missed += 1
        return (
            f"the engine hangs: {missed} times in a row it did not say within {self._heartbeat.patience_s:g} s which "
            "version it serves"
        )

    async def _until_not(self, engine: Engine) -> None:
        async with self._changed:
            await self._changed.wait_for(
                lambda: self._engine is not engine or self._status.state is not EngineState.READY
            )

    async def _set(self, **changes: object) -> None:
        async with self._changed:
            self._status = replace(self._status, **changes)  # pyright: ignore[reportArgumentType]
            self._changed.notify_all()

    def _versions(self) -> dict[str, int]:
        return {policy: self._live[policy].version if policy in self._live else 0 for policy in self.settings.policies}

    def _ready_engine(self) -> Engine:
        if self._engine is None or self._status.state is not EngineState.READY:
            raise EngineError(f"the engine is {self._status.state}; await ready() first")
        return self._engine


async def _takes(engine: Engine, publication: Publication) -> bool:
    try:
        return (await engine.publish(publication)).accepted
    except (EngineError, PublicationError) as error:
        logger.warning("the engine did not go back to %s and is restarted: %s", publication.name, error)
        return False

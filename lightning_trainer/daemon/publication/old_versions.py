"""Old versions served for evaluation, as ``POLICY@vN``, by a second engine, which the first call for one starts.

The engine of the live version is not involved: no traffic is held, no weights are swapped, no step waits. The price is
the memory of another engine while someone evaluates, so there is one at most, for one version at a time, and it ends
when it has been idle for a while. On a GPU that trainers use as well, it sleeps when the first engine does.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lightning_trainer.errors import EngineError
from lightning_trainer.gateway.engine.upstream import Upstream
from lightning_trainer.serving.engine_client import Engine
from lightning_trainer.serving.lifecycle import EngineState
from lightning_trainer.serving.settings import EngineSettings
from lightning_trainer.serving.supervisor import EngineSupervisor
from lightning_trainer.versions.archive import VersionArchive

_log = logging.getLogger(__name__)


class OldVersionBusyError(EngineError):
    """Another version is being called, and one is served at a time; or a trainer has the engine's GPU."""


@dataclass(frozen=True, slots=True)
class Lease:
    """One call's hold on the engine."""

    upstream: Upstream
    release: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Serving:
    version: int
    engine: EngineSupervisor
    upstream: Upstream
    starting: asyncio.Task[None]


class OldVersionEngine:
    """The second engine, when there is one."""

    def __init__(
        self,
        archive: VersionArchive,
        settings: EngineSettings,
        *,
        make_engine: Callable[[EngineSettings], Engine],
        idle_timeout_s: float,
        make_upstream: Callable[[EngineSupervisor], Upstream],
        no_room: str | None = None,
    ) -> None:
        """
        Args:
            settings: of the engine; its folders become those of a version.
            make_engine: returns an engine that is not started.
            no_room: why there is no memory for the engine, and what to do; None if there is.
        """
        self.archive = archive
        self._settings = settings
        self._make_engine = make_engine
        self._idle_timeout_s = idle_timeout_s
        self._make_upstream = make_upstream
        self._no_room = no_room
        self._asleep = False
        self._serving: _Serving | None = None
        self._calls = 0
        self._changing = asyncio.Lock()
        self._ending: asyncio.Task[None] | None = None

    @property
    def in_use(self) -> tuple[int, ...]:
        """Return the version that it serves or is starting to serve, if any."""
        return (self._serving.version,) if self._serving is not None else ()

    @property
    def pid(self) -> int | None:
        """Return the process id of the second engine; None if there is none."""
        return self._serving.engine.status.pid if self._serving is not None else None

    def versions(self) -> Sequence[int]:
        """Return the versions that can be leased."""
        return self.archive.versions()

    def failure(self, version: int) -> str | None:
        """Return why the engine of a version was given up; None if it was not, or there is none."""
        serving = self._serving
        if serving is None or serving.version != version or serving.engine.state is not EngineState.FAILED:
            return None
        return serving.engine.status.last_error or "its engine failed"

    async def lease(self, version: int) -> Lease | None:
        """Return the engine of a stored version; calls wait in its upstream until it has started.

        Raises:
            OldVersionBusyError: it is busy with another version, or a trainer has the GPU that it would start on.
            EngineError: there is no memory for it.
            PublicationError: what is stored cannot be read.
        """
        if version not in self.archive.versions():
            return None
        if self._no_room is not None:
            raise EngineError(self._no_room)
        async with self._changing:
            if self._serving is not None and self._serving.engine.state is EngineState.FAILED:
                await asyncio.shield(self._end())  # a caller who hangs up must not leave half an engine
            if self._serving is None or self._serving.version != version:
                if self._calls and self._serving is not None:
                    raise OldVersionBusyError(
                        f"version {self._serving.version} is being evaluated, and one old version is served at a time; "
                        "try again when those calls have ended"
                    )
                if self._asleep:
                    raise OldVersionBusyError(
                        f"the engine of version {version} starts when the trainer has done with its GPU; try again then"
                    )
                await asyncio.shield(self._end())
                self._begin(version)
            assert self._serving is not None
            if self._ending is not None:
                self._ending.cancel()
            self._calls += 1
            return Lease(self._serving.upstream, self._release)

    async def let_go(self, version: int) -> None:
        """End the engine of a version at once, unless calls are using the version."""
        async with self._changing:
            if self._serving is not None and self._serving.version == version and not self._calls:
                if self._ending is not None:
                    self._ending.cancel()
                await self._end()

    async def sleep(self, level: int) -> None:
        """Release the GPU's memory until ``wake``: the engine sleeps if there is one, and none is started."""
        async with self._changing:
            if not self._asleep and self._serving is not None:
                await self._serving.engine.sleep(level)
            self._asleep = True

    async def wake(self) -> None:
        """Let the engine take the memory back; does nothing if it is awake."""
        async with self._changing:
            if self._asleep and self._serving is not None:
                await self._serving.engine.wake()
            self._asleep = False

    async def stop(self) -> None:
        """End the engine, if there is one."""
        async with self._changing:
            if self._ending is not None:
                self._ending.cancel()
            await self._end()

    def _begin(self, version: int) -> None:
        folder = self.archive.folder(version).absolute()
        settings = replace(self._settings, weights_dir=folder, log_dir=self._settings.log_dir / "old-version")
        engine = EngineSupervisor(settings, live=(self.archive.publication(version),), make=self._make_engine)
        _log.info("starting an engine for version %d", version)
        starting = asyncio.create_task(_start(engine), name="old-version-engine")
        self._serving = _Serving(version, engine, self._make_upstream(engine), starting)

    async def _end(self) -> None:
        serving, self._serving = self._serving, None
        if serving is None:
            return
        serving.starting.cancel()
        await asyncio.gather(serving.starting, return_exceptions=True)
        await serving.upstream.close()
        await serving.engine.stop()
        _log.info("the engine of version %d has ended", serving.version)

    def _release(self) -> None:
        self._calls -= 1
        if not self._calls:
            self._ending = asyncio.create_task(self._end_when_idle(), name="old-version-idle")

    async def _end_when_idle(self) -> None:
        await asyncio.sleep(self._idle_timeout_s)
        async with self._changing:
            if not self._calls:
                await self._end()


async def _start(engine: EngineSupervisor) -> None:
    with contextlib.suppress(EngineError):  # callers that wait for it hear of it from ``ready``
        await engine.start()

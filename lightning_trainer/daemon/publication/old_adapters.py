"""Old adapters served for evaluation, as ``POLICY@vN``, by the engine of the live one, alongside it.

The first call for an adapter loads it from the archive and proves it as when it was new; it is unloaded when it has
been idle for a while. Several can be called at once. After a restart of the engine the adapter is loaded again, by the
next call or by one that has waited for the restart.
"""

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from lightning_trainer.daemon.publication.old_versions import Lease
from lightning_trainer.errors import EngineError, LightningError
from lightning_trainer.gateway.engine.upstream import EngineEndpoint, Upstream
from lightning_trainer.serving.host.weights.version_pinning import VERSION_HEADER
from lightning_trainer.serving.supervisor import EngineSupervisor
from lightning_trainer.versions.archive import VersionArchive

_log = logging.getLogger(__name__)

_READY_TIMEOUT_S = 60.0


@dataclass(slots=True)
class _Held:
    upstream: Upstream
    engine_life: tuple[int | None, int] | None = None
    """Process id and restarts of the engine that it was loaded into; processes on two nodes may have the same id."""
    calls: int = 0
    ending: asyncio.Task[None] | None = None


@dataclass(frozen=True, slots=True)
class _OneVersion:
    """The engine, asked for one version of a policy."""

    engine: EngineSupervisor
    version: int
    load_again: Callable[[int], Awaitable[None]]
    """Loads the version if the engine was restarted since."""

    @property
    def base_url(self) -> str:
        return self.engine.base_url

    @property
    def headers(self) -> Mapping[str, str]:
        return {**self.engine.headers, VERSION_HEADER: str(self.version)}

    async def ready(self, timeout_s: float) -> None:
        await self.engine.ready(timeout_s)
        await self.load_again(self.version)


class OldAdapters:
    """The old adapters, served in addition to the live one."""

    pid: int | None = None
    """They have no process of their own."""

    def __init__(
        self,
        policy: str,
        archive: VersionArchive,
        engine: EngineSupervisor,
        weights_dir: Path,
        *,
        idle_timeout_s: float,
        make_upstream: Callable[[EngineEndpoint], Upstream],
    ) -> None:
        """``weights_dir``: where the engine reads weights."""
        self.archive = archive
        self._policy = policy
        self._engine = engine
        self._weights_dir = weights_dir
        self._idle_timeout_s = idle_timeout_s
        self._make_upstream = make_upstream
        self._held: dict[int, _Held] = {}
        self._changing = asyncio.Lock()

    @property
    def in_use(self) -> tuple[int, ...]:
        """Return the versions that were loaded and have not been unloaded."""
        return tuple(self._held)

    def versions(self) -> Sequence[int]:
        """Return the versions that can be leased."""
        return self.archive.versions()

    def failure(self, version: int) -> str | None:
        """Return None: the engine is the live version's too, so its failure says nothing about an adapter."""
        return None

    async def lease(self, version: int) -> Lease | None:
        """Load a stored version if necessary and return a lease on it; None if it is not stored.

        Raises:
            EngineError: the engine did not become ready, or refuses what is stored.
            PublicationError: what is stored cannot be read.
        """
        if version not in self.archive.versions():
            return None
        async with self._changing:
            await self._engine.ready(_READY_TIMEOUT_S)
            held, life = self._held.get(version), self._life
            if held is None or held.engine_life != life:
                await self._load(version)
            if held is None:  # made once the engine has it: a refusal leaves nothing open
                upstream = self._make_upstream(_OneVersion(self._engine, version, self._load_again))
                held = self._held[version] = _Held(upstream)
            held.engine_life = life
            if held.ending is not None:
                held.ending.cancel()
            held.calls += 1
            return Lease(held.upstream, partial(self._release, version))

    async def let_go(self, version: int) -> None:
        """Unload the version at once, unless calls are using it."""
        async with self._changing:
            if (held := self._held.get(version)) is not None and not held.calls:
                await self._end(version)

    async def stop(self) -> None:
        """Unload all of them."""
        async with self._changing:
            for version in tuple(self._held):
                await self._end(version)

    @property
    def _life(self) -> tuple[int | None, int]:
        return self._engine.status.pid, self._engine.status.restarts

    async def _load_again(self, version: int) -> None:
        if (held := self._held.get(version)) is None or held.engine_life == self._life:
            return  # every call goes through here
        async with self._changing:
            if held is self._held.get(version) and held.engine_life != (life := self._life):
                await self._load(version)
                held.engine_life = life

    async def _load(self, version: int) -> None:
        kept = self.archive.publication(version)
        # The engine reads from one folder alone, and keeps a copy of its own.
        path = self._weights_dir / f"old-v{version}.safetensors"
        await asyncio.to_thread(shutil.copyfile, kept.path, path)
        try:
            report = await self._engine.hold(replace(kept, path=str(path)))
        finally:
            path.unlink(missing_ok=True)
        if not report.accepted:
            raise EngineError(f"the kept adapter of {kept.name} cannot be served: {report.reason}")
        _log.info("%s is served alongside the live version", kept.name)

    def _release(self, version: int) -> None:
        held = self._held.get(version)
        if held is not None:
            held.calls -= 1
            if not held.calls:
                held.ending = asyncio.create_task(self._end_when_idle(version), name=f"old-adapter-{version}-idle")

    async def _end_when_idle(self, version: int) -> None:
        await asyncio.sleep(self._idle_timeout_s)
        async with self._changing:
            if (held := self._held.get(version)) is not None and not held.calls:
                held.ending = None  # this task, which ``_end`` must not cancel
                await self._end(version)

    async def _end(self, version: int) -> None:
        held = self._held.pop(version)
        if held.ending is not None:
            held.ending.cancel()
        await held.upstream.close()
        with contextlib.suppress(LightningError):  # an engine that is gone holds nothing
            await self._engine.drop(self._policy, version)

"""The daemon's life: what starts in which order, and how all of it stops.

HTTP comes up first, so that spans are accepted while engine and trainer are still starting; calls wait at the gateway.
Stopping goes backwards and leaves no process, port or shared-memory file behind.
"""

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from socket import socket

import uvicorn
from fastapi import Depends, FastAPI
from lightning_instrumentation.redaction.rules import redactor

from lightning_trainer.agents.live import LiveCensus
from lightning_trainer.config import Config, PolicyConfig
from lightning_trainer.daemon.checkpoints import CheckpointFolder
from lightning_trainer.daemon.demonstrations import Demonstrations
from lightning_trainer.daemon.keeping import VersionKeeper
from lightning_trainer.daemon.late_rewards import late_rewards
from lightning_trainer.daemon.old_adapters import OldAdapters
from lightning_trainer.daemon.old_versions import OldVersionEngine
from lightning_trainer.daemon.progress import Progress
from lightning_trainer.daemon.publishing import Publisher
from lightning_trainer.daemon.rollback import RollbackRequests, rollback_router
from lightning_trainer.daemon.selection import selection_router
from lightning_trainer.daemon.selection_watch import watch_selection
from lightning_trainer.daemon.sockets import listen
from lightning_trainer.daemon.spools import drain_spools
from lightning_trainer.daemon.status import status_router
from lightning_trainer.daemon.training_loop import TrainingLoop
from lightning_trainer.daemon.trusted_hosts import TrustedHosts, hosts_of_environment
from lightning_trainer.errors import StoreError, TrainingError
from lightning_trainer.gateway.auth import require_token
from lightning_trainer.gateway.redacting import RedactingSink
from lightning_trainer.gateway.routes import gateway_router
from lightning_trainer.gateway.upstream import EngineEndpoint, Upstream
from lightning_trainer.ingest.otlp import otlp_router
from lightning_trainer.ingest.rewards import rewards_router
from lightning_trainer.ingest.rollouts import rollouts_router
from lightning_trainer.metrics.recorder import MetricsRecorder
from lightning_trainer.models.resolve import model_cache, resolve_model
from lightning_trainer.serving.settings import EngineSettings, engine_settings
from lightning_trainer.serving.shared_memory import WeightFiles
from lightning_trainer.serving.supervisor import EngineSupervisor
from lightning_trainer.store.sqlite import SqliteStore
from lightning_trainer.training.remote import TrainerClient, make_trainer
from lightning_trainer.training.settings import trainer_settings
from lightning_trainer.types import Span
from lightning_trainer.versions.archive import VersionArchive, archive_root

_log = logging.getLogger(__name__)


class NotifyingSink:
    """The store, with a bell: whoever waits for new spans wakes up after each commit. Late rewards are reported."""

    def __init__(self, store: SqliteStore, progress: Progress) -> None:
        self._store = store
        self._progress = progress
        self.stored = asyncio.Event()

    async def append(self, spans: Sequence[Span]) -> int:
        new = await self._store.append_new(spans)
        if new:
            self.stored.set()
            await self._report_late(new)
        return len(new)

    async def _report_late(self, new: Sequence[Span]) -> None:
        try:
            count, sentence = await late_rewards(self._store, new)
        except StoreError as error:
            _log.warning("cannot tell whether a reward came too late: %s", error)  # it is stored all the same
            return
        if sentence is not None:
            self._progress.late_rewards += count
            self._progress.say(sentence)


class Daemon:
    """One run of ``lightning-trainer serve``."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.progress = Progress()
        self.url: str | None = None
        """Set as soon as it listens."""
        self.metrics: MetricsRecorder | None = None
        """Set before training starts."""

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set, then take everything down.

        Raises:
            ConfigError: the port is taken, or the environment names a host wrongly.
            ModelError: the policy's model cannot be used.
            DatasetError: what a stage is to be shown cannot be.
            StoreError: another daemon has the state folder, or a newer version wrote it.
            EngineError: the engine did not start.
            TrainingError: the trainer did not start.
        """
        config, policy = self.config, self.config.only_policy
        state_dir = config.daemon.state_dir
        state_dir.mkdir(parents=True, exist_ok=True)
        async with AsyncExitStack() as stack:
            listener = stack.enter_context(contextlib.closing(listen(config.daemon.host, config.daemon.port)))
            self.url = f"http://{config.daemon.host}:{listener.getsockname()[1]}"
            store = await stack.enter_async_context(SqliteStore(state_dir / "lightning.sqlite"))
            model_dir = await asyncio.to_thread(resolve_model, policy.model, model_cache())
            demonstrations = Demonstrations(policy, seed=config.training.seed)
            await asyncio.to_thread(demonstrations.read, model_dir, config.engine.chat_template)
            weights = stack.enter_context(WeightFiles(state_dir, version_bytes=_weight_bytes(model_dir)))
            settings = engine_settings(config, (policy,), model_dir, weights.folder, state_dir / "logs")
            engine = EngineSupervisor(settings)
            archive = VersionArchive(archive_root(state_dir, policy.name), model_dir=model_dir)
            old_versions = self._old_versions(policy, archive, engine, settings, weights)
            sink = NotifyingSink(store, self.progress)
            trainer = make_trainer(
                config.training.backend,
                trainer_settings(config, policy, model_dir, state_dir / "logs", await _reference_dir(policy)),
            )
            self.metrics = metrics = MetricsRecorder(policy.name, store, folder=state_dir, config=config.metrics)
            stack.push_async_callback(metrics.close)
            rollbacks = RollbackRequests(wake=sink.stored)
            app = self._app(store, sink, engine, trainer, metrics, old_versions, rollbacks)
            await stack.enter_async_context(_serving(app, listener))
            stack.enter_context(_announced(state_dir / "daemon.json", self.url))
            stack.push_async_callback(_ended(asyncio.create_task(drain_spools(self.url, sink))))

            stack.push_async_callback(trainer.close)
            stack.push_async_callback(engine.stop)
            stack.push_async_callback(old_versions.stop)
            if not await _unless(
                stop, asyncio.gather(engine.start(), trainer.start(), metrics.start(self.progress.say))
            ):
                return
            keeper = VersionKeeper(
                policy, store=store, archive=old_versions.archive, in_use=lambda: old_versions.in_use
            )
            stack.push_async_callback(keeper.settled)
            publisher = Publisher(
                policy.name, store=store, trainer=trainer, engine=engine, weights=weights, keeper=keeper
            )
            loop = TrainingLoop(
                policy,
                store=store,
                trainer=trainer,
                publisher=publisher,
                checkpoints=CheckpointFolder(state_dir / "checkpoints" / policy.name, keep=policy.keep_checkpoints),
                progress=self.progress,
                metrics=metrics,
                rollbacks=rollbacks,
                stored=sink.stored,
                demonstrations=demonstrations,
            )
            loop_task = asyncio.create_task(loop.run())
            stack.push_async_callback(_ended(loop_task))
            watch = watch_selection(policy, LiveCensus(store), self.progress)
            stack.push_async_callback(_ended(asyncio.create_task(watch)))
            stopped = asyncio.create_task(stop.wait())
            await asyncio.wait({stopped, loop_task}, return_when=asyncio.FIRST_COMPLETED)
            if loop_task.done():
                loop_task.result()  # a bug or a dead engine must not pass silently
            await stopped
            await _save_if_idle(loop, loop_task)

    def _app(
        self,
        store: SqliteStore,
        sink: NotifyingSink,
        engine: EngineSupervisor,
        trainer: TrainerClient,
        metrics: MetricsRecorder,
        old_versions: OldVersionEngine | OldAdapters,
        rollbacks: RollbackRequests,
    ) -> FastAPI:
        config, policy = self.config, self.config.only_policy
        app = FastAPI(title="lightning-trainer", docs_url=None, redoc_url=None, openapi_url=None)
        listed = (*config.daemon.trusted_hosts, *hosts_of_environment())
        app.add_middleware(TrustedHosts, host=config.daemon.host, listed=listed)
        guarded = [Depends(require_token(config.daemon.token))]
        app.include_router(otlp_router(sink, max_body_bytes=config.daemon.max_body_bytes), dependencies=guarded)
        app.include_router(rewards_router(store, sink), dependencies=guarded)
        app.include_router(rollouts_router(store, sink), dependencies=guarded)
        gateway = gateway_router(
            engine,
            RedactingSink(sink, redactor(config.daemon.redact)),
            policy=policy.name,
            max_body_bytes=config.gateway.max_body_bytes,
            max_concurrent=config.gateway.max_concurrent,
            queue_timeout_s=config.gateway.queue_timeout_s,
            silence_timeout_s=config.gateway.silence_timeout_s,
            old_versions=old_versions,
        )
        app.include_router(gateway, dependencies=guarded)
        app.include_router(
            status_router(
                policy,
                store=store,
                progress=self.progress,
                engine=engine,
                trainer=trainer,
                metrics=metrics,
                old_versions=old_versions,
            ),
            dependencies=guarded,
        )
        app.include_router(rollback_router(policy.name, rollbacks), dependencies=guarded)
        app.include_router(selection_router(config.policy, gateway), dependencies=guarded)
        return app

    def _old_versions(
        self,
        policy: PolicyConfig,
        archive: VersionArchive,
        engine: EngineSupervisor,
        settings: EngineSettings,
        weights: WeightFiles,
    ) -> OldVersionEngine | OldAdapters:
        idle_s = policy.versions.idle_timeout_s
        if policy.lora is None:
            return OldVersionEngine(archive, settings, idle_timeout_s=idle_s, make_upstream=self._upstream)
        return OldAdapters(
            policy.name, archive, engine, weights.folder, idle_timeout_s=idle_s, make_upstream=self._upstream
        )

    def _upstream(self, engine: EngineEndpoint) -> Upstream:
        """The gateway's way to an old version's engine, within the same bounds."""
        gateway = self.config.gateway
        return Upstream(
            engine,
            queue_timeout_s=gateway.queue_timeout_s,
            silence_timeout_s=gateway.silence_timeout_s,
            connections=gateway.max_concurrent,
        )


class _Server(uvicorn.Server):
    """Leaves signals to the daemon, which has more to stop than HTTP."""

    @contextlib.contextmanager
    def capture_signals(self):
        yield


@asynccontextmanager
async def _serving(app: FastAPI, listener: socket) -> AsyncIterator[None]:
    server = _Server(
        uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=2, lifespan="on")
    )
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        if task.done():
            task.result()
        await asyncio.sleep(0.01)
    try:
        yield
    finally:
        server.should_exit = True
        await task


@contextlib.contextmanager
def _announced(path: Path, url: str):
    """``daemon.json``: where a running daemon is; gone when it is."""
    path.write_text(json.dumps({"pid": os.getpid(), "url": url}))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _ended(task: asyncio.Task):
    async def end() -> None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task

    return end


async def _reference_dir(policy: PolicyConfig) -> Path | None:
    """Return the folder of the frozen model, where another one than the policy's own start is asked for."""
    spec = policy.reference_model
    if spec is None:
        return None
    return await asyncio.to_thread(resolve_model, spec, model_cache())


async def _unless(stop: asyncio.Event, work: asyncio.Future) -> bool:
    """Wait for ``work`` unless stopped first; True when it was done."""
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({stopped, work}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
            return True
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
        return False
    finally:
        stopped.cancel()


async def _save_if_idle(loop: TrainingLoop, task: asyncio.Task) -> None:
    """Write a last checkpoint, so that the next start repeats nothing; a busy trainer is not waited for."""
    if not task.done():
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    try:
        async with asyncio.timeout(60):
            await loop.save()
    except (TrainingError, TimeoutError) as error:
        _log.warning("no checkpoint at shutdown (%s); the next start repeats the steps since the last one", error)


def _weight_bytes(model_dir: Path) -> int:
    return sum(file.stat().st_size for file in model_dir.glob("*.safetensors"))

"""The dashboard over the example run, served as the daemon serves it, in a process of its own or in a thread.

Everything is real except the engine and the trainer: the policy stands still, and its rollbacks are recorded at once.
"""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fastapi import FastAPI
from lightning_instrumentation.redaction.rules import redactor

from benchmarks.dashboard.example_attempts import Encode, letters
from benchmarks.dashboard.example_run import fill
from lightning_trainer.agents.live_census import LiveCensus
from lightning_trainer.cli.doctor import run_checks
from lightning_trainer.config import Config
from lightning_trainer.config.file import load_config
from lightning_trainer.daemon.api.labels import labels_router
from lightning_trainer.daemon.api.pausing import pausing_router
from lightning_trainer.daemon.api.rollback import RollbackRequests
from lightning_trainer.daemon.dashboard import LiveDaemon
from lightning_trainer.daemon.http.server import serving
from lightning_trainer.daemon.http.sockets import bind
from lightning_trainer.daemon.http.trusted_hosts import TrustedHosts
from lightning_trainer.daemon.watching.progress import Phase, Progress
from lightning_trainer.dashboard.routes import Dashboard
from lightning_trainer.dashboard.site import Site
from lightning_trainer.errors import LightningError
from lightning_trainer.ingest.redacting import RedactingSink, SpanRedactor
from lightning_trainer.metrics.recorder import MetricsRecorder
from lightning_trainer.store.sqlite import SqliteStore
from lightning_trainer.types import VersionState
from lightning_trainer.versions.rollback import record_promotion, record_rollback


class StandingPolicy:
    """A policy as ``LiveDaemon`` needs it: nothing is trained, and requests are recorded as the loop records them."""

    def __init__(self, config: Config, store: SqliteStore) -> None:
        self.policy = config.policy[0]
        self.progress = Progress()
        self.progress.groups_wanted = self.policy.groups_per_step
        self.progress.ready_groups = 1
        self.progress.enter(Phase.COLLECTING)
        self.metrics = MetricsRecorder(self.policy.name, store, folder=config.daemon.state_dir)
        self.rollbacks = RollbackRequests(wake=asyncio.Event())
        self.engine = SimpleNamespace(status=SimpleNamespace(state="ready", pid=None, node=None))
        self.trainer = SimpleNamespace(process_id=None, companions=())
        self.old_versions = SimpleNamespace(pid=None)
        self._store = store

    async def run(self) -> None:
        """Do what the loop does between two steps."""
        while True:
            await self.rollbacks.wait()
            if (asked := self.rollbacks.pending) is not None:
                try:
                    await (self._promote if asked.promote else self._roll_back)(asked.version)
                except LightningError as error:
                    self.rollbacks.end(error)
                else:
                    self.rollbacks.end()
            self.progress.enter(Phase.HELD if self.rollbacks.paused else Phase.COLLECTING, self.rollbacks.paused or "")

    async def _roll_back(self, version: int) -> None:
        await record_rollback(self._store, self.policy.name, version)

    async def _promote(self, version: int) -> None:
        """Promote a version as if an engine had proven it."""
        await record_promotion(self._store, self.policy.name, version)
        known = await self._store.version(self.policy.name, version)
        if known is not None:
            reason = f"a person promoted it; it was refused before: {known.reason}"
            await self._store.put_version(replace(known, state=VersionState.LIVE, reason=reason))


@dataclass
class Served:
    """A dashboard that is served."""

    url: str
    state_dir: Path
    policy: Any
    store: SqliteStore
    loop: asyncio.AbstractEventLoop

    def wait(self, work: Any) -> Any:
        """Run a coroutine in the server's loop and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)


@contextmanager
def served(
    folder: Path,
    *,
    token: str | None = None,
    steps: int = 8,
    encode: Encode = letters,
    model: str = "random:nowhere",
    config_path: Path | None = None,
) -> Iterator[Served]:
    """Serve the example from a thread until the block ends; its store is filled unless ``config_path`` is given."""
    ready: list[Served] = []
    errors: list[BaseException] = []
    up, stop = threading.Event(), asyncio.Event()

    async def run() -> None:
        path = config_path or await fill(folder, steps=steps, now_ns=time.time_ns(), encode=encode, model=model)
        config = load_config(path)
        async with SqliteStore(config.daemon.state_dir / "lightning.sqlite", config.store) as store:
            policy = StandingPolicy(config, store)
            await policy.metrics.start(policy.progress.say)
            listener = bind("127.0.0.1", 0)
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            async with serving(_app(config, store, policy, url, token), listener):
                working = asyncio.create_task(policy.run())
                ready.append(Served(url, config.daemon.state_dir, policy, store, asyncio.get_running_loop()))
                up.set()
                await stop.wait()
                working.cancel()
            await policy.metrics.close()

    def work() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            errors.append(error)
        finally:
            up.set()

    thread = threading.Thread(target=work, name="dashboard", daemon=True)
    thread.start()
    up.wait(120)
    if errors or not ready:
        raise errors[0] if errors else TimeoutError("the example was not served within 120 s")
    try:
        yield ready[0]
    finally:
        ready[0].loop.call_soon_threadsafe(stop.set)
        thread.join(30)


def _app(config: Config, store: SqliteStore, policy: Any, url: str, token: str | None) -> FastAPI:
    app = FastAPI(title="lightning-trainer", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(TrustedHosts, host="127.0.0.1")
    sink = RedactingSink(store, SpanRedactor(redactor(config.daemon.redact)))
    live = LiveDaemon([policy], store, sink)
    checks = [check for check in run_checks(config) if check.name != "port"]
    site = Site(config, store, LiveCensus(store), url, live, lambda: checks)
    for router in (
        Dashboard(site, token).router(),
        pausing_router(store, {policy.policy.name: policy.rollbacks}),
        labels_router(store, sink, config),
    ):
        app.include_router(router)
    return app

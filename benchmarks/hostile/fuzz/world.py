"""The daemon's own application over a real store, with an engine that takes anything, in this process."""

import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fastapi import FastAPI

from benchmarks.hostile.fuzz.engine import Engine, served
from lightning_trainer.config import Config
from lightning_trainer.daemon.api.rollback import RollbackRequests
from lightning_trainer.daemon.service import Daemon
from lightning_trainer.daemon.watching.notifying_store import NotifyingStore
from lightning_trainer.daemon.watching.progress import Progress
from lightning_trainer.errors import RollbackError
from lightning_trainer.gateway.engine.upstream import Upstream
from lightning_trainer.metrics.recorder import MetricsRecorder
from lightning_trainer.serving.supervisor import EngineState, EngineStatus
from lightning_trainer.store.sqlite import SqliteStore

POLICY = "math"
MAX_BODY_BYTES = 2**20


class _Endpoint:
    """The engine, which is always ready."""

    headers: Mapping[str, str] = {}
    status = EngineStatus(EngineState.READY, None, {POLICY: 0}, 0, 0.0, None)

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url

    async def ready(self, timeout_s: float) -> None: ...


class _NoOldVersions:
    pid = None

    def versions(self) -> tuple[int, ...]:
        return ()

    async def lease(self, version: int) -> None: ...


class _NoWayBack(RollbackRequests):
    """Refuses every rollback: there is no loop that would make it."""

    async def ask(self, version: int, *, promote: bool = False) -> None:
        raise RollbackError(f"there is no version {version}")


class Tracebacks(logging.Handler):
    """Counts what was logged as an error, with its traceback if there is one: a stranger's body must not cause any."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        where = ""
        if record.exc_info and record.exc_info[1] is not None:
            trace = record.exc_info[2]
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            place = "" if trace is None else f" at {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
            where = f" {type(record.exc_info[1]).__name__}: {record.exc_info[1]}{place}"
        self.found[f"{record.name}: {record.getMessage()[:120]}{where[:300]}"] += 1


@dataclass(frozen=True, slots=True)
class World:
    app: FastAPI
    store: SqliteStore
    config: Config
    tracebacks: Tracebacks


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[World]:
    """Yield the application while the lifespans of its routers run."""
    config = Config.model_validate(
        {
            "daemon": {"state_dir": str(folder), "max_body_bytes": MAX_BODY_BYTES},
            "gateway": {"max_body_bytes": MAX_BODY_BYTES, "queue_timeout_s": 5.0},
            "feedback": {"source_per_hour": 10**6, "all_per_hour": 10**7},
            "policy": [{"name": POLICY, "agents": ["solver"], "model": "random:tiny", "group_size": 2}],
            "judge": [{"name": "polite", "kind": "program", "command": ["true"]}],
        }
    )
    tracebacks = Tracebacks()
    root = logging.getLogger()
    quiet = logging.NullHandler()
    loggers = (root, logging.getLogger("uvicorn"))  # which passes nothing on to the root
    for logger in loggers:
        logger.addHandler(tracebacks)
    root.addHandler(quiet)
    try:
        async with SqliteStore(folder / "lightning.sqlite") as store, served(Engine()) as engine_url:
            sink = NotifyingStore(store)
            endpoint: Any = _Endpoint(engine_url)
            progress = Progress()
            stored = sink.watch(POLICY, progress)
            runtime: Any = SimpleNamespace(
                policy=config.policy[0],
                image_token=None,
                upstream=Upstream(endpoint, queue_timeout_s=5.0),
                old_versions=_NoOldVersions(),
                canary_route=None,
                shadow=lambda _: None,
                progress=progress,
                engine=endpoint,
                trainer=SimpleNamespace(process_id=None, companions=()),
                metrics=MetricsRecorder(POLICY, store, folder=folder),
                rollbacks=_NoWayBack(wake=stored),
            )
            app = Daemon(config)._app(store, sink, [runtime], None)
            async with contextlib.AsyncExitStack() as stack:
                await stack.enter_async_context(app.router.lifespan_context(app))
                yield World(app, store, config, tracebacks)
    finally:
        for logger in loggers:
            logger.removeHandler(tracebacks)
        root.removeHandler(quiet)

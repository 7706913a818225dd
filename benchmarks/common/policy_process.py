"""A policy's loop and routes without engine and trainer, in a process of their own: all that they ask the store.

    python -m benchmarks.common.policy_process STATE_DIR [--retention-size SIZE]

The loop collects for more groups than there are, metrics are recorded, retention runs, and the routes are served.
Prints its URL as soon as it answers.
"""

import argparse
import asyncio
import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse

from lightning_trainer.agents.live_census import LiveCensus
from lightning_trainer.config import PolicyConfig
from lightning_trainer.config.metrics import MetricsConfig
from lightning_trainer.config.sections import FeedbackConfig
from lightning_trainer.config.store import StoreConfig
from lightning_trainer.daemon.api.feedback import feedback_api
from lightning_trainer.daemon.api.rollback import RollbackRequests
from lightning_trainer.daemon.api.status import status_router
from lightning_trainer.daemon.api.store import store_router
from lightning_trainer.daemon.http.server import serving
from lightning_trainer.daemon.http.sockets import bind
from lightning_trainer.daemon.loop.context import LoopContext
from lightning_trainer.daemon.loop.training_loop import TrainingLoop
from lightning_trainer.daemon.state_folder import keep_within_limits
from lightning_trainer.daemon.watching.notifying_store import NotifyingStore
from lightning_trainer.daemon.watching.progress import Progress
from lightning_trainer.daemon.watching.selection_watch import watch_selection
from lightning_trainer.errors import StoreError
from lightning_trainer.ingest.http.otlp import otlp_router
from lightning_trainer.metrics.recorder import MetricsRecorder
from lightning_trainer.store import SqliteStore

POLICY = "support"


@dataclass(frozen=True)
class _Absent:
    """The status of an engine that does not exist."""

    pid: int | None = None
    node: str | None = None


async def run(state_dir: Path, config: StoreConfig) -> None:
    policy = PolicyConfig(name=POLICY, agents=("support",), model="none", groups_per_step=10**6)
    async with SqliteStore(state_dir / "lightning.sqlite", config) as store:
        sink, census, progress = NotifyingStore(store), LiveCensus(store), Progress()
        stored = sink.watch(POLICY, progress)
        await store.begin_policy(POLICY)
        metrics = MetricsRecorder(POLICY, store, folder=state_dir, config=MetricsConfig(tensorboard=False))
        rollbacks = RollbackRequests(wake=stored)
        (steps,) = await store.scan(lambda c: c.execute("SELECT max(step) FROM steps").fetchone())
        store.retention.wanted_by = lambda: [POLICY]
        store.retention.repeatable_from = lambda _: {POLICY: steps - 10}
        nothing: Any = None
        loop = TrainingLoop(
            LoopContext(
                policy=policy,
                store=store,
                progress=progress,
                metrics=metrics,
                rollbacks=rollbacks,
                stored=stored,
            ),
            trainer=nothing,
            publisher=nothing,
            checkpoints=nothing,
        )
        process = SimpleNamespace(status=_Absent(), process_id=None, companions=())
        watched: Any = SimpleNamespace(
            policy=policy,
            progress=progress,
            metrics=metrics,
            engine=process,
            trainer=process,
            old_versions=SimpleNamespace(versions=lambda: (), pid=None),
        )
        app = FastAPI()
        for router in (
            status_router([watched], store=store, census=census),
            store_router(store, {POLICY: rollbacks}),
            feedback_api(store, FeedbackConfig()),
            otlp_router(sink, max_body_bytes=64 * 2**20),
        ):
            app.include_router(router)

        @app.exception_handler(StoreError)
        async def unreadable(_, error: StoreError) -> JSONResponse:
            return JSONResponse({"error": str(error)}, status_code=503)

        listener = bind("127.0.0.1", 0)
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(serving(app, listener))
            print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(metrics.start(lambda sentence: None))
                tasks.create_task(census.get())
                tasks.create_task(watch_selection(policy, [policy], census, progress))
                tasks.create_task(keep_within_limits(store))
                tasks.create_task(loop.steps.next_attempts(policy.groups_per_step))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("state_dir", type=Path)
    parser.add_argument("--retention-size", default="none")
    options = parser.parse_args()
    config = StoreConfig.model_validate({"retention_size": options.retention_size})
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(options.state_dir, config))
    sys.exit(0)


if __name__ == "__main__":
    main()

"""``/healthz``: the daemon is alive. ``/readyz``: calls are taken and recorded, engines answer, loops make progress;
else 503 and the reason.
"""

import time
from collections.abc import Callable, Iterator, Sequence

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from lightning_trainer import __version__
from lightning_trainer.daemon.api.status import WatchedPolicy
from lightning_trainer.daemon.watching.progress import Phase
from lightning_trainer.serving.lifecycle import EngineState
from lightning_trainer.store.store import Store

_STANDS_STILL = (Phase.STARTING, Phase.WAITING, Phase.PAUSED)


def health_router(policies: Sequence[WatchedPolicy], store: Store, stopping: Callable[[], bool]) -> APIRouter:
    """Return the routes; nothing is ready once the daemon is ``stopping``."""
    router = APIRouter()

    @router.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok", "version": __version__}

    @router.get("/readyz", response_model=None)
    async def readyz() -> JSONResponse:
        if stopping():
            return JSONResponse({"ready": False, "reason": "this daemon is stopping"}, status_code=503)
        found = {watched.policy.name: list(_troubles(watched)) for watched in policies}
        of_store = [] if store.write_failure is None else [f"no call or span is recorded: {store.write_failure}"]
        ready = not of_store and not any(found.values())
        body = {
            "ready": ready,
            "store": of_store or ["ready"],
            "policies": {name: troubles or ["ready"] for name, troubles in found.items()},
        }
        return JSONResponse(body, status_code=200 if ready else 503)

    return router


def _troubles(watched: WatchedPolicy) -> Iterator[str]:
    engine, progress = watched.engine.status, watched.progress
    if engine.state is not EngineState.READY:
        because = f": {engine.last_error}" if engine.last_error else ""
        again = (
            "" if engine.retry_at is None else f"; it is started again in {max(0, engine.retry_at - time.time()):.0f} s"
        )
        yield f"the engine is {engine.state}{because}{again}"
    if progress.phase in _STANDS_STILL:
        yield f"training is {progress.phase}" + (f": {progress.detail}" if progress.detail else "")

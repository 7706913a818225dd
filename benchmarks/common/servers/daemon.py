"""A process: the daemon's own ingest, take-over of spools, gateway and store under uvicorn; no engine, no trainer.

    python -m benchmarks.common.servers.daemon --folder FOLDER [--port 0] [--engine URL [--claims AGENT]]

With ``--claims`` clients are told to route that agent's calls to the gateway, which answers calls of any agent.
"""

import argparse
import asyncio
import contextlib
import json
from collections.abc import Mapping
from pathlib import Path

import uvicorn
import uvloop
from fastapi import FastAPI
from lightning_instrumentation.redaction.rules import redactor

from benchmarks.common.processes import end_with_parent
from lightning_trainer.config import PolicyConfig
from lightning_trainer.daemon.api.runs import selection_router
from lightning_trainer.daemon.hardware.loan import settle_memory
from lightning_trainer.daemon.http.sockets import bind, listen
from lightning_trainer.daemon.spools import drain_spools
from lightning_trainer.gateway.engine.upstream import Upstream
from lightning_trainer.gateway.policies import ServedPolicy
from lightning_trainer.gateway.routes import gateway_router
from lightning_trainer.ingest.http.otlp import otlp_router
from lightning_trainer.ingest.redacting import RedactingSink, SpanRedactor
from lightning_trainer.store import SqliteStore

STORE = "lightning.sqlite"
POLICY = "policy"


class _Endpoint:
    """The scripted engine, which is always ready."""

    headers: Mapping[str, str] = {}

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url

    async def ready(self, timeout_s: float) -> None:
        pass


async def serve(options: argparse.Namespace) -> None:
    listener = bind("127.0.0.1", options.port)
    listen(listener)  # before its address is printed
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with SqliteStore(options.folder / STORE) as store:
        app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        redacting = RedactingSink(store, SpanRedactor(redactor(())))
        app.include_router(otlp_router(redacting))
        if options.engine:
            # The model's name is the one that the scripted engine answers to.
            served = ServedPolicy(options.model, Upstream(_Endpoint(options.engine)), lambda _: bool(options.claims))
            gateway = gateway_router([served], redacting)
            app.include_router(gateway)
            claims = {"name": options.model, "agents": [options.claims], "model": "tiny-random"}
            policies = [PolicyConfig.model_validate(claims)] if options.claims else []
            app.include_router(selection_router(policies, gateway))
        draining = asyncio.create_task(drain_spools(url, redacting))
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=2, lifespan="on")
        print(json.dumps({"url": url}), flush=True)
        await uvicorn.Server(config).serve(sockets=[listener])
        draining.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await draining


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--engine")
    parser.add_argument("--claims")
    parser.add_argument("--model", default=POLICY)
    options = parser.parse_args()
    end_with_parent()
    settle_memory()
    uvloop.run(serve(options))


if __name__ == "__main__":
    main()

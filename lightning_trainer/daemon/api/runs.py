"""Which runs are going on: the process that runs one holds its name for as long as a connection stays open.

Group ids carry the name, so two runners with one name would complete each other's groups. A connection needs no clock:
it ends with the process that opened it, however that ends, and a process that starts the same run again gets its name
at once.
"""

import asyncio
from collections.abc import Sequence

from fastapi import APIRouter, HTTPException
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.types import Message, Receive, Scope, Send

from lightning_trainer import __version__
from lightning_trainer.config import PolicyConfig

_BEAT_S = 10.0
"""Seconds between two lines, from which each side learns when the other's machine is gone."""
_HEAD: Message = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]}
_LINE: Message = {"type": "http.response.body", "body": b"held\n", "more_body": True}


class _Hold(Response):
    """An endless answer: the name is free again when the caller is gone."""

    def __init__(self, held: set[str], name: str) -> None:
        super().__init__()
        self._held = held
        self._name = name
        held.add(name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        beating = asyncio.create_task(_beat(send))
        try:
            while (await receive())["type"] != "http.disconnect":
                pass
        finally:
            self._held.discard(self._name)
            beating.cancel()


async def _beat(send: Send) -> None:
    await send(_HEAD)
    while True:
        await send(_LINE)
        await asyncio.sleep(_BEAT_S)


def runs_router() -> APIRouter:
    """Return the routes that list runs and hold a run's name; they share one set of names."""
    router = APIRouter()
    held: set[str] = set()

    @router.get("/lightning/runs")
    async def runs() -> list[str]:
        """The names of the runs that are going on."""
        return sorted(held)

    @router.get("/lightning/runs/{name}/hold", response_class=Response)
    async def hold(name: str) -> Response:
        """A line now and then for as long as the caller listens; 409 while someone else does."""
        if name in held:
            raise HTTPException(409, f"the run {name!r} is going on: another process holds its name")
        return _Hold(held, name)

    return router


# ``/lightning/selection``: which policy claims which agents, for clients that route calls by it.


def selection_router(policies: Sequence[PolicyConfig], gateway: APIRouter) -> APIRouter:
    """Return the route; a client takes the first policy whose patterns match (``PolicyConfig.claims``)."""
    router = APIRouter()
    paths = sorted(
        route.path.removeprefix("/v1")
        for route in gateway.routes
        if isinstance(route, APIRoute) and "POST" in route.methods and route.path.startswith("/v1/")
    )

    @router.get("/lightning/selection")
    async def selection() -> dict:
        return {
            "version": __version__,
            "policies": [{"name": policy.name, "agents": list(policy.agents)} for policy in policies],
            "paths": paths,
        }

    return router

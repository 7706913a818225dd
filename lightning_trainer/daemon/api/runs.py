"""The runs that are under way: a run's process holds the run's name for as long as it keeps a connection open.

Group ids carry the name, so two runners with one name would complete each other's groups. A connection needs no clock:
it ends with the process that opened it, however that ends, and a process that starts the same run again gets its name
at once. If daemons share a store, a name is held in the store as well, and renewed with every line.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Iterator, Sequence
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.types import Message, Receive, Scope, Send

from lightning_trainer import __version__
from lightning_trainer.config import PolicyConfig
from lightning_trainer.errors import StoreError
from lightning_trainer.store.sharing import Sharing

_BEAT_S = 10.0
"""Seconds between two lines, by which each side notices when the other's machine is gone."""
_LASTS_S = 30.0
"""How long the store keeps a name whose daemon is silent."""
_HEADERS = [
    (b"content-type", b"text/plain"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would hold back the first line, for which a runner waits
]
_HEAD: Message = {"type": "http.response.start", "status": 200, "headers": _HEADERS}
_LINE: Message = {"type": "http.response.body", "body": b"held\n", "more_body": True}
_END: Message = {"type": "http.response.body", "body": b""}


class _Runs:
    """The names that callers of this daemon hold."""

    def __init__(self, store: Sharing) -> None:
        self.store = store
        self._held: set[str] = set()

    async def names(self) -> list[str]:
        return sorted({*self._held, *await self.store.held_runs()})

    async def take(self, name: str, holder: str) -> bool:
        """Hold a name; return whether it was free."""
        if name in self._held:
            return False
        self._held.add(name)
        taken = False
        try:
            taken = await self.store.hold_run(name, holder, _LASTS_S)
        finally:
            if not taken:
                self._held.discard(name)
        return taken

    async def renew(self, name: str, holder: str) -> bool:
        """Renew the hold; return False if another daemon's caller took the name while this one was silent."""
        try:
            return await self.store.hold_run(name, holder, _LASTS_S)
        except StoreError:  # nobody else can take it either
            return True

    async def release(self, name: str, holder: str) -> None:
        try:
            with contextlib.suppress(StoreError):  # then the hold expires by itself
                await self.store.release_run(name, holder)
        finally:
            self._held.discard(name)


class _Hold(Response):
    """An endless answer: the name is free again when the caller is gone."""

    def __init__(self, runs: _Runs, name: str, holder: str) -> None:
        super().__init__()
        self._runs = runs
        self._name = name
        self._holder = holder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sides = [asyncio.create_task(self._beat(send)), asyncio.create_task(_gone(receive))]
        try:
            await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for side in sides:
                side.cancel()
            await self._runs.release(self._name, self._holder)

    async def _beat(self, send: Send) -> None:
        await send(_HEAD)
        await send(_LINE)
        while True:
            await asyncio.sleep(_BEAT_S)
            if not await self._runs.renew(self._name, self._holder):
                break
            await send(_LINE)
        await send(_END)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def runs_router(store: Sharing) -> APIRouter:
    """Return the routes that list runs and hold a run's name."""
    router = APIRouter()
    held = _Runs(store)

    @router.get("/lightning/runs")
    async def runs() -> list[str]:
        """Return the names of the runs that are under way."""
        with _unavailable():
            return await held.names()

    @router.get("/lightning/runs/{name}/hold", response_class=Response)
    async def hold(name: str, holder: Annotated[str | None, Query(pattern="^[0-9a-f]{32}$")] = None) -> Response:
        """Send a line now and then for as long as the caller listens; answer 409 while another one holds the name."""
        holder = holder or secrets.token_hex(16)
        with _unavailable():
            taken = await held.take(name, holder)
        if not taken:
            raise HTTPException(409, f"the run {name!r} is going on: another process holds its name")
        return _Hold(held, name, holder)

    return router


@contextlib.contextmanager
def _unavailable() -> Iterator[None]:
    """Answer 503 if the store cannot be used, so that the caller tries again."""
    try:
        yield
    except StoreError as error:
        raise HTTPException(503, str(error)) from error


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

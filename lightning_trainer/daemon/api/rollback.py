"""``POST /lightning/policies/{name}/rollback`` and ``/promote``: another version is served, between two steps.

A rollback goes back to a version that was served before; a promotion serves one that a guard, its canary or the
probe held back.
"""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from uuid import uuid4

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from lightning_trainer.errors import LightningError, RollbackError
from lightning_trainer.ingest.http.bodies import JsonBodyError, error_response, read_json


@dataclass(slots=True)
class AskedRollback:
    """A rollback or promotion that a request waits for."""

    version: int
    promote: bool = False
    """Whether it is a promotion, of a version that was never served."""
    id: str = field(default_factory=lambda: uuid4().hex)
    """Identifies it in a store that other daemons share."""
    recorded: bool = False
    """Whether it is in the store, so that it will happen, whatever crashes."""
    done: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class RollbackRequests:
    """What the routes ask for and the loop carries out between two steps, one request at a time."""

    def __init__(self, wake: asyncio.Event) -> None:
        """``wake`` is set at each request, for a loop that waits for something else."""
        self._wake = wake
        self._asked = asyncio.Event()
        self.pending: AskedRollback | None = None
        self.changed = False
        """Whether a recorded step was taken out since the loop last looked."""
        self.paused: str | None = None
        """Why a person paused training; None if it is not paused."""

    async def ask(self, version: int, *, promote: bool = False) -> None:
        """Ask for a version, and return when it is served and training goes on from it.

        Raises:
            RollbackError: another request is under way, or the version cannot be had.
            LightningError: the request is recorded, and trainer or engine failed on it.
        """
        if self.pending is not None:
            what = "promotion of" if self.pending.promote else "rollback to"
            raise RollbackError(f"a {what} version {self.pending.version} is under way; wait for it")
        self.pending = asked = AskedRollback(version, promote)
        self._asked.set()
        self._wake.set()
        await asyncio.shield(asked.done)

    def promotes(self, version: int) -> bool:
        """Whether a person asks for a version that is held back, whatever its comparison finds."""
        return self.pending is not None and self.pending.promote and self.pending.version == version

    async def wait(self) -> None:
        """Return when a version is asked for, the records have changed, or training was paused or resumed."""
        await self._asked.wait()
        if self.pending is None and not self.changed:
            self._asked.clear()

    def look_again(self) -> None:
        """Wake a loop that rests: what is recorded has changed."""
        self.changed = True
        self._asked.set()
        self._wake.set()

    def look_at_pause(self) -> None:
        """Wake a loop that rests or collects: it was paused, or may go on."""
        self._asked.set()
        self._wake.set()

    def wake(self) -> None:
        """Wake a loop that collects or waits for rewards: some came to another daemon, or attempts were taken out."""
        self._wake.set()

    def end_recorded(self, error: LightningError | None = None) -> None:
        """Like ``end``, but only for a request that is recorded: one that came meanwhile is yet to be looked at."""
        if self.pending is not None and self.pending.recorded:
            self.end(error)

    def end(self, error: LightningError | None = None) -> None:
        """Tell the request that waits, if there is one, how it ended."""
        asked, self.pending = self.pending, None
        self._asked.clear()
        if asked is not None and not asked.done.done():
            asked.done.set_exception(error) if error is not None else asked.done.set_result(None)


class RollbackBody(BaseModel):
    """What is posted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int = Field(ge=0, le=2**63 - 1, strict=True)


def no_policy(name: str, known: Collection[str]) -> str:
    """Return the error for a policy that does not exist."""
    if not known:
        return (
            f"there is no policy {name!r}: this daemon only records; add a [[policy]] to its configuration and start "
            "it again"
        )
    return f"there is no policy {name!r}; this daemon has {', '.join(map(repr, known))}"


def rollback_router(requests: Mapping[str, RollbackRequests]) -> APIRouter:
    """Return the routes; ``requests``: by the name of the policy."""
    router = APIRouter()

    @router.post("/lightning/policies/{name}/rollback")
    async def roll_back(name: str, request: Request) -> JSONResponse:
        """Answer when the version is served: after the present step, and after recorded ones were repeated."""
        return await answer(name, request, promote=False)

    @router.post("/lightning/policies/{name}/promote")
    async def promote(name: str, request: Request) -> JSONResponse:
        """Answer when the version is proven and served: after the present step, or at once while its canary runs."""
        return await answer(name, request, promote=True)

    async def answer(name: str, request: Request, *, promote: bool) -> JSONResponse:
        try:
            if name not in requests:
                raise JsonBodyError(404, no_policy(name, requests))
            body = await read_json(request, RollbackBody)
            await requests[name].ask(body.version, promote=promote)
        except JsonBodyError as error:
            return error.response()
        except RollbackError as error:
            return error_response(409, str(error))
        except LightningError as error:
            return error_response(503, str(error))
        return JSONResponse({"policy": name, "version": body.version})

    return router

"""``POST /lightning/policies/{name}/pause`` and ``/resume``: training rests until someone resumes it.

A pause is recorded in the store, so it survives a restart; serving and capture go on. It takes effect between two
steps: the one that is being trained ends first.
"""

from collections.abc import Mapping

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from lightning_trainer.daemon.api.rollback import RollbackRequests, no_policy
from lightning_trainer.errors import StoreError
from lightning_trainer.ingest.http.bodies import JsonBodyError, error_response, read_json
from lightning_trainer.store.store import Store
from lightning_trainer.store.tables import pauses


class PauseBody(BaseModel):
    """What is posted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reason: str = Field(default="someone paused it", min_length=1, max_length=1000)


class ResumeBody(BaseModel):
    """What is posted: an empty object."""

    model_config = ConfigDict(extra="forbid", frozen=True)


async def pause(store: Store, asked: RollbackRequests, policy: str, reason: str) -> str:
    """Record that a policy is paused, wake its loop, and say so."""
    await store.write(lambda connection: pauses.put(connection, policy, reason))
    asked.paused = reason
    asked.look_at_pause()
    return f"training of {policy} is paused after the present step; serving and capture go on"


async def resume(store: Store, asked: RollbackRequests, policy: str) -> str:
    """Record that a policy is resumed, wake its loop, and say so."""
    was = await store.write(lambda connection: pauses.remove(connection, policy))
    asked.paused = None
    asked.look_at_pause()
    return f"training of {policy} goes on" if was else f"training of {policy} was not paused"


def pausing_router(store: Store, requests: Mapping[str, RollbackRequests]) -> APIRouter:
    """Return the routes; ``requests``: by the name of the policy."""
    router = APIRouter()

    @router.post("/lightning/policies/{name}/pause")
    async def pause_it(name: str, request: Request) -> JSONResponse:
        return await _answer(name, request, pausing=True)

    @router.post("/lightning/policies/{name}/resume")
    async def resume_it(name: str, request: Request) -> JSONResponse:
        return await _answer(name, request, pausing=False)

    async def _answer(name: str, request: Request, *, pausing: bool) -> JSONResponse:
        try:
            if name not in requests:
                raise JsonBodyError(404, no_policy(name, requests))
            if pausing:
                body = await read_json(request, PauseBody)
                said = await pause(store, requests[name], name, body.reason)
            else:
                await read_json(request, ResumeBody)
                said = await resume(store, requests[name], name)
        except JsonBodyError as error:
            return error.response()
        except StoreError as error:
            return error_response(503, str(error), retry_after_s=1)
        return JSONResponse({"policy": name, "said": said})

    return router

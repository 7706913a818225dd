"""``POST /lightning/drop`` takes something out of what will be trained."""

from collections.abc import Mapping
from dataclasses import asdict

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from lightning_trainer.daemon.api.rollback import RollbackRequests
from lightning_trainer.errors import DropError, StoreError
from lightning_trainer.ingest.http.bodies import JsonBodyError, error_response, read_json
from lightning_trainer.store.store import Store
from lightning_trainer.store.worklist.drops import Kind


class DropBody(BaseModel):
    """What is posted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, max_length=512)
    kind: Kind | None = None
    policy: str | None = None
    reason: str = Field(default="someone dropped it", min_length=1, max_length=1000)


def store_router(store: Store, rollbacks: Mapping[str, RollbackRequests]) -> APIRouter:
    """Return the route; ``rollbacks``, by policy, wake a loop that rests."""
    router = APIRouter()

    @router.post("/lightning/drop")
    async def drop_it(request: Request) -> JSONResponse:
        """Answer when the drop is recorded; 409 if what is named was trained already, or nothing has that name."""
        try:
            body = await read_json(request, DropBody)
            dropped = await store.drop(body.name, reason=body.reason, kind=body.kind, policy=body.policy)
        except JsonBodyError as error:
            return error.response()
        except DropError as error:
            return error_response(409, str(error))
        except StoreError as error:
            return error_response(503, str(error), retry_after_s=1)
        # With a shared store, the daemon that trains hears of the drop from the store, be it this one or another.
        loop = None if store.shared else rollbacks.get(dropped.name.rpartition("@")[0])
        if dropped.kind is not Kind.STEP:
            for one in rollbacks.values():
                one.wake()
        elif loop is not None:
            loop.look_again()
        return JSONResponse(asdict(dropped))

    return router

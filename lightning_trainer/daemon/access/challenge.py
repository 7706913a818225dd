"""``GET /lightning/challenge?nonce=``: the daemon proves that it has the token; it needs none to be asked."""

from typing import Annotated

from fastapi import APIRouter, Query
from lightning_instrumentation.access.proof import PATH, proof

_NONCE = Query(pattern="^[0-9a-f]{16,128}$")


def challenge_router(token: str | None) -> APIRouter:
    """Return the route. A daemon without a token says so."""
    router = APIRouter()

    @router.get(PATH)
    async def challenge(nonce: Annotated[str, _NONCE]) -> dict[str, str | None]:
        return {"proof": None if token is None else proof(token, nonce)}

    return router

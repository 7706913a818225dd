"""``GET /lightning/challenge?nonce=``: the daemon proves that it has the token, and says which one it is."""

from typing import Annotated

from fastapi import APIRouter, Query
from lightning_instrumentation.access.proof import PATH, identity_proof, proof

_NONCE = Query(pattern="^[0-9a-f]{16,128}$")


def challenge_router(token: str | None, daemon: str) -> APIRouter:
    """Return the route. A daemon without a token says so.

    Args:
        daemon: its id.
    """
    router = APIRouter()

    @router.get(PATH)
    async def challenge(nonce: Annotated[str, _NONCE]) -> dict[str, str | None]:
        return {
            "proof": None if token is None else proof(token, nonce),
            "daemon": daemon,
            "daemon_proof": None if token is None else identity_proof(token, nonce, daemon),
        }

    return router

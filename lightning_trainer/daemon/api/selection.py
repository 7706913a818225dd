"""``/lightning/selection``: which policy claims which agents, for clients that route calls by it."""

from collections.abc import Sequence

from fastapi import APIRouter
from fastapi.routing import APIRoute

from lightning_trainer import __version__
from lightning_trainer.config import PolicyConfig


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

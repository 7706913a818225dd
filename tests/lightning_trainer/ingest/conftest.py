"""A store and an app around a router, spoken to in process."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest
from fastapi import APIRouter, FastAPI

from lightning_trainer.store import SqliteStore


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with SqliteStore(tmp_path / "lightning.sqlite") as opened:
        yield opened


@pytest.fixture
def client_of() -> Callable[[APIRouter], httpx.AsyncClient]:
    def client(router: APIRouter) -> httpx.AsyncClient:
        app = FastAPI()
        app.include_router(router)
        return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://daemon")

    return client

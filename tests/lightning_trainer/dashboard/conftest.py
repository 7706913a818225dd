"""A store with a run in it, the pages over it, and Chromium."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from lightning_trainer.config.file import load_config
from lightning_trainer.daemon.service import Daemon
from lightning_trainer.daemon.watching.notifying_store import NotifyingStore
from lightning_trainer.store import SqliteStore
from lightning_trainer.store.postgres.store import PostgresStore
from lightning_trainer.store.postgres.upkeep.copying import copy_to_postgres

ROOT = Path(__file__).parents[3]
TOKEN = "token-of-the-dashboards-tests"


def _part(name: str) -> ModuleType:
    return import_module(f"benchmarks.dashboard.{name}")


@pytest.fixture(scope="session")
def example_run() -> ModuleType:
    return _part("example_run")


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory, example_run: ModuleType) -> Path:
    """The folder of a run of six steps; nobody writes into it."""
    folder = tmp_path_factory.mktemp("filled")
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(example_run.fill(folder, steps=6, now_ns=time.time_ns()))).result()
    return folder


@pytest.fixture
def run(tmp_path: Path, filled: Path) -> Path:
    """The configuration of a run of six steps."""
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    return tmp_path / "lightning.toml"


@pytest.fixture
async def get(run: Path) -> AsyncIterator[Callable[..., Awaitable[httpx.Response]]]:
    """``await get("/agents")``: a page of the daemon that has the run in its store, without an engine."""
    config = load_config(run)
    async with SqliteStore(config.daemon.state_dir / "lightning.sqlite") as store:
        app = Daemon(config)._app(store, NotifyingStore(store), [], None)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8321") as client:
            yield client.get


@pytest.fixture
async def get_moved(run: Path, postgres_url: str) -> AsyncIterator[Callable[..., Awaitable[httpx.Response]]]:
    """The same of the run after its store was moved to PostgreSQL."""
    config = load_config(run)
    copy_to_postgres(config.daemon.state_dir / "lightning.sqlite", postgres_url)
    async with PostgresStore(postgres_url) as store:
        app = Daemon(config)._app(store, NotifyingStore(store), [], None)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8321") as client:
            yield client.get


@pytest.fixture
async def empty(tmp_path: Path, example_run: ModuleType) -> AsyncIterator[Callable[..., Awaitable[httpx.Response]]]:
    """``await empty("/agents")``: the same of a store without anything in it."""
    (tmp_path / "lightning.toml").write_text(example_run.config_text())
    config = load_config(tmp_path / "lightning.toml")
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        app = Daemon(config)._app(store, NotifyingStore(store), [], None)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8321") as client:
            yield client.get


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A dashboard that answers at ``site.url``, with a token; of one policy that stands still."""
    with _part("live_example").served(tmp_path_factory.mktemp("site"), token=TOKEN, steps=6) as served:
        yield served

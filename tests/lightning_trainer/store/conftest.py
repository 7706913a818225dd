"""Spans and stores for the store's tests."""

import sqlite3
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.config.store import StoreConfig
from lightning_trainer.store import SqliteStore, Store
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.postgres.connection import PostgresConnection
from lightning_trainer.store.postgres.store import PostgresStore
from lightning_trainer.types import AttributeValue, Span, SpanStatus


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.process)])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Store]:
    """Make a store that is not open yet, on each database; every name another one, the same name the same one."""
    schemas: dict[str, str] = {}

    def make(limits: StoreConfig | None = None, *, name: str = "s") -> Store:
        if request.param == "sqlite":
            return SqliteStore(tmp_path / f"{name}.sqlite", limits)
        if name not in schemas:
            server = request.getfixturevalue("postgres")
            schemas[name] = f"store_{next(_SCHEMAS)}"
            server.execute(f"CREATE SCHEMA {schemas[name]}")
        return PostgresStore(request.getfixturevalue("postgres").url(schemas[name]), limits)

    return make


_SCHEMAS = count(1)


@pytest.fixture
def connect() -> Callable[[Store], Connection]:
    """Connect to a store that is open, beside its own connections."""
    return lambda store: (
        sqlite3.connect(store.path) if isinstance(store, SqliteStore) else PostgresConnection(store.url)  # pyright: ignore
    )


@pytest.fixture
async def store(make_store: Callable[..., Store]):
    async with make_store() as opened:
        yield opened


@pytest.fixture
def make_span() -> Callable[..., Span]:
    def make(number: int, *, trace: int = 1, parent: int | None = None, **fields) -> Span:
        attributes: Mapping[str, AttributeValue] = fields.pop("attributes", {})
        defaults = {"name": "chat", "start_ns": number, "end_ns": number + 1, "attributes": attributes}
        return Span(
            trace_id=f"{trace:032x}",
            span_id=f"{number:016x}",
            parent_span_id=None if parent is None else f"{parent:016x}",
            **{**defaults, **fields},
        )

    return make


@pytest.fixture
def make_root(make_span) -> Callable[..., Span]:
    def make(number: int, attempt: str, *, error: str | None = None, mode: str = "train", **fields) -> Span:
        attributes = {
            semconv.ROLLOUT_ROOT: True,
            semconv.ROLLOUT_ID: f"rollout-of-{attempt}",
            semconv.ATTEMPT_ID: attempt,
            semconv.TASK_ID: "task",
            semconv.GROUP_ID: "group",
            semconv.ROLLOUT_MODE: mode,
        }
        return make_span(
            number,
            **{"name": "rollout", "trace": number, "attributes": attributes, **fields},
            status=SpanStatus.OK if error is None else SpanStatus.ERROR,
            status_message=error or "",
        )

    return make

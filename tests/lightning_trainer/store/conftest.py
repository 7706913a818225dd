"""Spans and stores for the store's tests."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.store import SqliteStore
from lightning_trainer.types import AttributeValue, Span, SpanStatus


@pytest.fixture
async def store(tmp_path: Path):
    async with SqliteStore(tmp_path / "lightning.sqlite") as opened:
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

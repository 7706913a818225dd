"""How many spans an attempt lacks does not depend on order, re-delivery or restarts."""

import random
from pathlib import Path

import lightning_instrumentation as lt
import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.routing.hosts import baggage
from lightning_instrumentation.runtime import runtime
from lightning_instrumentation.scope import Identity
from starlette.datastructures import Headers

from lightning_trainer.gateway.caller import read_caller
from lightning_trainer.ingest.http.otlp import decode_request
from lightning_trainer.store import SqliteStore
from lightning_trainer.store.schema import MIGRATIONS
from lightning_trainer.store.sqlite import sqlite3
from lightning_trainer.types import Span

ROOT = {semconv.ROLLOUT_ROOT: True}


def numbered(make_span, number: int, started: int, *, of: str = "n1", attempt: str = "a", root=False, **more) -> Span:
    attributes = {
        semconv.ATTEMPT_ID: attempt,
        semconv.ROLLOUT_ID: f"r-{attempt}",
        semconv.SEQUENCE: of,
        semconv.SEQUENCE_NUMBER: number,
        semconv.SEQUENCE_STARTED: started,
        **(ROOT if root else {}),
    }
    digits = int.from_bytes(f"{of}{attempt}".encode()) % 1000 * 1000 + number
    return make_span(digits, attributes={**attributes, **more})


@pytest.fixture
def attempt(make_span) -> list[Span]:
    """Root and three calls of one process, two spans of another, and the gateway's record of one of its calls."""
    return [
        *(numbered(make_span, n, n) for n in (2, 3, 4)),
        numbered(make_span, 1, 4, root=True),
        numbered(make_span, 2, 2, of="n2"),
        numbered(make_span, 1, 2, of="n2"),
    ]


async def test_an_attempt_lacks_nothing_when_all_its_spans_have_come_in_any_order(store, attempt) -> None:
    random.Random(1).shuffle(attempt)
    for span in attempt:
        await store.append([span])
        await store.append([span])
    assert await store.missing_spans() == {}
    assert [one.attempt_id for one in await store.ended_attempts()] == ["a"]


async def test_each_span_that_has_not_come_is_missing(make_store, attempt) -> None:
    for absent in range(len(attempt)):
        async with make_store(name=f"without-{absent}") as other:
            await other.append([span for number, span in enumerate(attempt) if number != absent])
            ended = attempt[absent].attributes.get(semconv.ROLLOUT_ROOT) is not True
            assert await other.missing_spans() == ({"a": 1} if ended else {})
            await other.append([attempt[absent]])
            assert await other.missing_spans() == {}


async def test_the_gateways_record_tells_of_a_process_that_has_not_said_anything_yet(store, make_span, attempt) -> None:
    """Its numbers come from a header, as text."""
    record = make_span(
        77,
        scope=semconv.GATEWAY_SCOPE,
        attributes={
            semconv.ATTEMPT_ID: "a",
            semconv.ROLLOUT_ID: "r-a",
            semconv.SEQUENCE: "n2",
            semconv.SEQUENCE_STARTED: "2",
        },
    )
    await store.append([*attempt[:4], record])
    assert await store.missing_spans() == {"a": 2}
    await store.append(attempt[4:])
    assert await store.missing_spans() == {}


async def test_a_running_attempt_lacks_nothing_yet_and_a_consumed_one_no_more(store, make_span) -> None:
    await store.append([numbered(make_span, 3, 3)])
    assert await store.missing_spans() == {}
    await store.append([numbered(make_span, 1, 3, root=True)])
    assert await store.missing_spans() == {"a": 1}
    from lightning_trainer.store import StepState

    await store.assign(None, policy="p", step=1, attempt_ids=["a"], ledger=(), state=StepState.SKIPPED, metrics={})
    assert await store.missing_spans() == {}


@pytest.mark.parametrize("nonsense", ["x", "-1", -1, 0, True, 2**40, "9" * 40, 1.5, b"2"])
async def test_numbers_that_are_none_ask_for_nothing(store, make_span, nonsense) -> None:
    await store.append(
        [
            numbered(make_span, nonsense, nonsense, root=True)
            if isinstance(nonsense, int)
            else numbered(make_span, 1, 1, root=True, **{semconv.SEQUENCE_STARTED: nonsense})
        ]
    )
    assert await store.missing_spans() == {}


async def test_a_store_from_before_is_brought_up_to_date(tmp_path: Path, make_root) -> None:
    path = tmp_path / "old.sqlite"
    with sqlite3.connect(path) as connection:
        connection.executescript(f"{MIGRATIONS[0]} PRAGMA user_version = 1;")
    async with SqliteStore(path) as store:
        await store.append([make_root(1, "a")])
        assert await store.missing_spans() == {}


@pytest.fixture
def client(tmp_path: Path):
    lt.shutdown(0.0)
    lt.init("http://127.0.0.1:9", spool_dir=tmp_path / "spool")
    yield
    lt.shutdown(0.0)


async def test_what_the_client_writes_is_what_is_counted(store, client) -> None:
    with lt.rollout("t", attempt_id="a", rollout_id="r") as rollout:
        lt.agent("x")(lambda: None)()
        rollout.reward(1.0)
        said = read_caller(Headers({"baggage": baggage(Identity("r", "a"), None)})).attributes
    started = runtime()
    assert started is not None
    (spool,) = started.outbox._spools()
    *inside, root = [span for body in spool.read(10) for span in decode_request(body).spans]
    assert (said[semconv.SEQUENCE], said[semconv.SEQUENCE_STARTED]) == (root.attributes[semconv.SEQUENCE], "3")
    await store.append([root, inside[0]])
    assert await store.missing_spans() == {"a": 1}
    await store.append(inside)
    assert await store.missing_spans() == {}

"""What was recorded before a policy was first started: not its, unless its configuration says so, and then what it can
use of it."""

import asyncio
import itertools
import sqlite3
import time
from array import array

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.config import PolicyConfig
from lightning_trainer.errors import StoreError
from lightning_trainer.store import SqliteStore
from lightning_trainer.store.schema import MIGRATIONS
from lightning_trainer.types import Span

_numbers = itertools.count(1)
POLICY = {"name": "math", "agents": ["solver"], "model": "random:tiny", "group_size": 2, "groups_per_step": 1}
TRUSTED = {
    "algorithm": {"rollout_is": "token"},
    "train_recorded": True,
    "trusted": [{"host": "gpu-box:8000", "model": "m", "version": "unknown"}],
}


def attempt_spans(name: str, *, agent: str = "solver", model: str = "m", ids: bool = True) -> list[Span]:
    """An ended attempt at task "t", in which an agent made a call to an engine elsewhere, as our client records it."""
    own = {semconv.ROLLOUT_ID: name, semconv.ATTEMPT_ID: name, semconv.TASK_ID: "t"}
    trace_id, root_id = f"{next(_numbers):032x}", f"{next(_numbers):016x}"
    call = {
        **own,
        semconv.AGENT_NAME: agent,
        semconv.OPERATION: semconv.CHAT,
        semconv.RESPONSE_ID: f"response-{next(_numbers)}",
        semconv.SERVER_ADDRESS: "gpu-box",
        semconv.SERVER_PORT: 8000,
        semconv.RESPONSE_MODEL: model,
    }
    if ids:
        call |= {
            semconv.PROMPT_TOKEN_IDS: array("i", [1, 2]).tobytes(),
            semconv.CHOICES: 1,
            semconv.response_token_ids(0): array("i", [3]).tobytes(),
            semconv.response_logprobs(0): array("f", [-0.5]).tobytes(),
        }
    span_id = f"{next(_numbers):016x}"
    return [
        Span(trace_id, span_id, root_id, "chat m", 2, 3, call, scope=semconv.CLIENT_SCOPE),
        Span(trace_id, root_id, None, "rollout", 1, time.time_ns(), {**own, semconv.ROLLOUT_ROOT: True}),
    ]


@pytest.fixture
async def store(tmp_path):
    async with SqliteStore(tmp_path / "store.sqlite") as store:
        yield store


async def collected(make_loop, store: SqliteStore, **changes) -> set[str]:
    """The attempts that the next step is made of, or waits for."""
    loop = make_loop(store, PolicyConfig.model_validate({**POLICY, **changes}))
    collection = await loop.steps.collect()
    return {attempt.attempt_id for _, attempts in collection.ready for attempt in attempts}


async def test_training_begins_with_what_comes_after(store, collecting_loop):
    for name in ("a1", "a2"):
        await store.append(attempt_spans(name))
    assert await store.begin_policy("math") == 2
    assert await collected(collecting_loop, store) == set()
    for name in ("b1", "b2"):
        await store.append(attempt_spans(name))
    # They are of the same task, and so of the same group id: the earlier two are not among them.
    assert await collected(collecting_loop, store) == {"b1", "b2"}
    assert await store.begin_policy("math") is None  # the daemon starts again: that changes nothing
    assert await collected(collecting_loop, store) == {"b1", "b2"}


async def test_an_attempt_that_had_begun_is_an_earlier_one(store, collecting_loop):
    call, root = attempt_spans("a1")
    await store.append([call])
    await store.begin_policy("math")
    await store.append([root, *attempt_spans("a2"), *attempt_spans("a3")])
    assert await collected(collecting_loop, store) == {"a2", "a3"}


async def test_what_a_trusted_engine_answered_is_trained_where_it_is_asked_for(store, collecting_loop):
    for name in ("a1", "a2"):
        await store.append(attempt_spans(name))
    await store.begin_policy("math")
    assert await collected(collecting_loop, store, **TRUSTED) == {"a1", "a2"}
    assert await collected(collecting_loop, store, **{**TRUSTED, "train_recorded": False}) == set()


@pytest.mark.parametrize("changes", [{"agent": "judge"}, {"model": "another"}, {"ids": False}])
async def test_groups_without_such_a_call_make_no_empty_steps(store, collecting_loop, changes):
    for name in ("a1", "a2"):
        await store.append(attempt_spans(name, **changes))
    await store.begin_policy("math")
    assert await collected(collecting_loop, store, **TRUSTED) == set()


async def test_a_call_that_comes_later_is_seen_too(store, collecting_loop):
    await store.begin_policy("math")
    loop = collecting_loop(store, PolicyConfig.model_validate({**POLICY, **TRUSTED}))
    assert (await loop.steps.collect()).ready == ()
    for name in ("a1", "a2"):
        await store.append(attempt_spans(name))
    ((_, attempts),) = (await loop.steps.collect()).ready
    assert [attempt.attempt_id for attempt in attempts] == ["a1", "a2"]


@pytest.mark.parametrize("error", [StoreError("the disk is full"), asyncio.CancelledError()])
async def test_a_call_whose_note_the_store_refuses_is_noted_at_the_next_look(
    store, collecting_loop, monkeypatch, error
):
    await store.begin_policy("math")
    loop = collecting_loop(store, PolicyConfig.model_validate({**POLICY, **TRUSTED}))
    for name in ("a1", "a2"):
        await store.append(attempt_spans(name))

    async def refuse(*_: object) -> None:
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(store, "take_part", refuse)
        with pytest.raises(type(error)):
            await loop.steps.collect()
    ((_, attempts),) = (await loop.steps.collect()).ready
    assert [attempt.attempt_id for attempt in attempts] == ["a1", "a2"]


async def test_a_policy_of_an_older_store_goes_on_where_it_was(tmp_path, collecting_loop):
    """Its steps and versions say that it was started long ago, when nobody noted when."""
    path = tmp_path / "store.sqlite"
    with sqlite3.connect(path) as connection:
        connection.executescript("".join(MIGRATIONS[:4]))
        connection.execute("PRAGMA user_version = 4")
        connection.execute("INSERT INTO steps VALUES ('math', 1, 'skipped', NULL, NULL, '{}')")
        for name in ("a1", "a2"):
            ended = (name, name, "t", None, "train", "succeeded", 1, time.time_ns(), None, name)
            connection.execute(f"INSERT INTO attempts VALUES ({', '.join('?' * len(ended))})", ended)
    async with SqliteStore(path) as store:
        assert await store.begin_policy("math") is None
        assert await collected(collecting_loop, store) == {"a1", "a2"}

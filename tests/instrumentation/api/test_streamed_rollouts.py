"""A rollout around a streamed answer: a web framework resumes a plain generator in another context each time."""

import asyncio
import logging
from contextvars import copy_context

import lightning_instrumentation as lt
import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.failures import failures
from lightning_instrumentation.scope import _current, current, current_agent
from starlette.concurrency import iterate_in_threadpool


def here() -> str | None:
    identity = current().identity
    return identity.rollout_id if identity else None


async def streamed(stream) -> list:
    """What Starlette's StreamingResponse sends."""
    return [chunk async for chunk in iterate_in_threadpool(stream)]


@pytest.fixture(autouse=True)
def unsaid(monkeypatch) -> None:
    monkeypatch.setattr(failures, "_said", set())


async def test_a_decorated_generator_is_one_attempt_in_whichever_context_it_goes_on(recording):
    @lt.rollout("t", rollout_id="r", mode="evaluate")
    def stream():
        yield here()
        yield here()
        lt.reward(1.0)

    assert await streamed(stream()) == ["r", "r"]
    (root,) = recording.spans("rollout")
    assert (root.attributes[semconv.ROLLOUT_ROOT], root.attributes[semconv.ROLLOUT_MODE]) == (True, "evaluate")
    assert root.error is None
    assert recording.span("evaluate").attributes[semconv.ATTEMPT_ID] == root.attributes[semconv.ATTEMPT_ID]


async def test_every_call_of_a_decorated_function_is_an_attempt_of_its_own(recording):
    @lt.rollout("t", group_id="g")
    def answer() -> str | None:
        return here()

    @lt.rollout("t", group_id="g")
    async def async_answer() -> str | None:
        return here()

    @lt.rollout("t", group_id="g")
    async def async_stream():
        yield here()

    names = [answer(), answer(), await async_answer(), *[chunk async for chunk in async_stream()]]
    assert len(set(names)) == 4
    roots = recording.spans("rollout")
    assert [root.attributes[semconv.ROLLOUT_ID] for root in roots] == names
    assert len({root.attributes[semconv.ATTEMPT_ID] for root in roots}) == 4


def test_a_decorated_function_that_raises_has_failed(recording):
    @lt.rollout("t")
    def answer():
        raise RuntimeError("tool is gone")

    with pytest.raises(RuntimeError):
        answer()
    assert recording.span("rollout").error == "tool is gone"


def test_what_is_no_function_cannot_be_decorated():
    with pytest.raises(TypeError, match=r"@lt\.rollout needs a function or method, got 3"):
        lt.rollout("t")(3)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("way", ["block", "decorator"])
def test_a_stream_that_is_closed_early_has_not_failed(recording, way):
    def block():
        with lt.rollout("t"):
            yield here()

    @lt.rollout("t")
    def decorated():
        yield here()

    stream = block() if way == "block" else decorated()
    assert next(stream) is not None
    stream.close()
    assert here() is None
    lt.flush()
    assert recording.span("rollout").error is None


async def test_a_block_that_goes_on_in_another_context_says_so_once(recording, caplog):
    """Before, it said nothing: calls after the first chunk had no rollout, and their rewards were lost."""

    def stream():
        with lt.rollout("t"):
            yield here()
            yield here()

    with caplog.at_level(logging.ERROR, logger="lightning_instrumentation"):
        for _ in range(2):
            first, second = await streamed(stream())
            assert (first is None, second is None) == (False, True)
    (record,) = caplog.records
    assert "`with lt.rollout('t')` ended in another context than it began in" in record.getMessage()
    assert lt.stats().failed["rollout-in-another-context"] >= 2


def test_a_block_that_ends_while_an_agents_is_still_open_says_nothing(recording, caplog):
    def lines():
        with lt.agent("reader"):
            yield 1

    def program() -> None:
        with lt.rollout("t"):
            suspended.append(lines())
            next(suspended[0])

    suspended = []
    with caplog.at_level(logging.ERROR, logger="lightning_instrumentation"):
        copy_context().run(program)
    assert caplog.records == []


@pytest.mark.parametrize(
    "block",
    [
        lambda: lt.rollout("t", mode="evaluate"),
        lambda: lt.agent("writer"),
        lambda: lt.state("kitchen"),
        lt.uncaptured,
    ],
    ids=["rollout", "agent", "state", "uncaptured"],
)
async def test_a_reader_who_leaves_an_async_generator_early_leaves_its_block_too(recording, block):
    """asyncio closes it in a task of its own, on a copy of the reader's context: the reader stayed inside for good."""
    before = current()
    seen = []

    async def stream():
        async with block():
            seen.append(current())
            await asyncio.sleep(0)
            yield 1
            yield 2

    for _ in range(3):
        async for _ in stream():
            break
    await asyncio.sleep(0.01)
    assert current() == before
    assert current_agent() is None
    assert len(seen) == 3
    assert all(one != before for one in seen)
    rollout = lt.rollout("t")
    with rollout:
        assert current().identity is not None
        assert (rollout.mode, current().agent, current().uncaptured) == ("train", None, False)
    assert current() == before


async def test_a_task_that_outlives_the_block_it_was_started_in_stays_in_it(recording):
    async def late() -> str | None:
        await asyncio.sleep(0.01)
        return here()

    with lt.rollout("t", rollout_id="r"):
        task = asyncio.create_task(late())
    assert (here(), await task) == (None, "r")


async def test_generators_that_are_read_in_turn_and_left_leave_no_chain_of_scopes(recording):
    async def stream():
        async with lt.rollout("t"):
            await asyncio.sleep(0)
            yield 1

    for _ in range(5):
        async for _ in stream():
            break
    await asyncio.sleep(0.01)
    left = _current.get()
    assert left.replaced_by is not None
    assert left.replaced_by.replaced_by is None

"""Of several engines: a call that met one that is gone is made by another, and each is counted until it ends."""

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Any

import orjson
import pytest

from lightning_trainer.errors import EngineError
from lightning_trainer.gateway.engine.upstream import Upstream

CALL = orjson.dumps({"model": "sql", "messages": [{"role": "user", "content": "Is it open?"}]})
STREAM = orjson.dumps({**orjson.loads(CALL), "stream": True})
PATH = "/v1/chat/completions"


class Choice:
    """The first engine that a call may have; counts as ``EngineReplicas`` does."""

    def __init__(self, *engines: Any) -> None:
        self.engines = engines
        self.in_flight = dict.fromkeys(engines, 0)
        self.chosen: list[int] = []
        self.conversations: list[str | None] = []

    async def ready(self, timeout_s: float) -> None: ...

    def begin(self, avoid: Collection[Any], conversation: str | None = None) -> Any:
        self.conversations.append(conversation)
        engine = next((one for one in self.engines if one not in avoid), self.engines[0])
        self.chosen.append(self.engines.index(engine))
        self.in_flight[engine] += 1
        return engine

    def end(self, endpoint: Any) -> None:
        self.in_flight[endpoint] -= 1

    @property
    def calls(self) -> list[int]:
        return list(self.in_flight.values())


@pytest.fixture
async def choice(open_gateway) -> AsyncIterator[Choice]:
    async with open_gateway() as one, open_gateway() as other, open_gateway() as third:
        yield Choice(one.endpoint, other.endpoint, third.endpoint)


@pytest.fixture
async def dying() -> AsyncIterator[str]:
    """Where every connection is closed when something was sent."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.fixture
async def upstream(choice) -> AsyncIterator[Upstream]:
    upstream = Upstream(choice, queue_timeout_s=2.0)
    yield upstream
    await upstream.close()


async def test_a_call_is_in_flight_until_its_answer_is_read_or_closed(choice, upstream):
    whole = await upstream.complete(PATH, CALL)
    assert (whole.status, choice.calls) == (200, [0, 0, 0])
    read = await upstream.open(PATH, STREAM)
    assert choice.calls == [1, 0, 0]
    await read.read()
    closed = await upstream.open(PATH, STREAM)
    assert choice.calls == [1, 0, 0]
    _ = [piece async for piece in closed.pieces()]
    for response in (closed, closed, read):
        response.close()
        assert choice.calls == [0, 0, 0]


async def test_an_error_answer_and_a_call_that_was_cancelled_are_in_flight_no_longer(choice, upstream):
    choice.engines[0].headers = {"authorization": "wrong"}
    assert ((await upstream.open(PATH, STREAM)).status, choice.calls) == (401, [0, 0, 0])

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(never, "127.0.0.1", 0) as silent:
        choice.engines[0].base_url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        calling = asyncio.create_task(upstream.complete(PATH, CALL))
        await asyncio.sleep(0.05)
        assert choice.calls == [1, 0, 0]
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        assert choice.calls == [0, 0, 0]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_met_an_engine_that_is_gone_goes_to_another(choice, upstream, dying, stream: bool):
    choice.engines[0].base_url = "http://127.0.0.1:9"  # nobody listens there
    choice.engines[1].base_url = dying
    answer = await (upstream.open(PATH, STREAM) if stream else upstream.complete(PATH, CALL))
    assert answer.status == 200
    answer.close()
    assert (choice.chosen, choice.calls) == ([0, 1, 2], [0, 0, 0])


async def test_a_call_on_which_two_die_is_given_to_no_third(choice, upstream, dying):
    for engine in choice.engines[:2]:
        engine.base_url = dying
    with pytest.raises(EngineError, match="dropped the request 2 times"):
        await upstream.complete(PATH, CALL)
    assert (choice.chosen, choice.calls) == ([0, 1], [0, 0, 0])


@pytest.mark.long
async def test_a_call_that_is_dropped_after_a_long_time_is_made_again_all_the_same(choice):
    """An engine that computed for longer than a call may wait for one, and died, was there all that time."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        await asyncio.sleep(0.4)
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        choice.engines[0].base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        upstream = Upstream(choice, queue_timeout_s=0.3)
        try:
            answer = await upstream.complete(PATH, CALL)
        finally:
            await upstream.close()
    assert (answer.status, choice.chosen) == (200, [0, 1])

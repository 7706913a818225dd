"""A connection to a model over a websocket is counted and said, and works as it would without us."""

import json

import lightning_instrumentation as lt
import openai
import pytest

_REASON = "not-captured:websocket"


@pytest.fixture
async def url():
    """The base URL of a server that answers each message on a websocket with one event."""
    from websockets.asyncio.server import serve

    async def answer(connection) -> None:
        async for message in connection:
            await connection.send(json.dumps({"type": "response.created", "sequence_number": 0, "asked": message}))

    async with serve(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


def counted() -> int:
    return lt.stats().failed.get(_REASON, 0)


async def test_responses_over_a_websocket_are_counted_and_said(recording, url, caplog):
    # Before: neither a span nor a count, and no word where a policy claims the agent
    before = counted()
    async with openai.AsyncOpenAI(base_url=url, api_key="k") as client, client.responses.connect() as connection:
        await connection.response.create(model="m", input="hello")
        event = await connection.recv()
    assert event.type == "response.created"
    assert counted() == before + 1
    assert not recording.spans()


async def test_other_websockets_and_calls_that_opted_out_are_not(recording, url):
    from websockets.asyncio.client import connect

    before = counted()
    place = url.replace("http://", "ws://")
    async with connect(f"{place}/rooms") as connection:
        await connection.send("hello")
        assert "hello" in str(await connection.recv())
    with lt.uncaptured():
        async with connect(f"{place}/responses"):
            pass
    assert counted() == before


def test_the_blocking_client_is_counted_too(recording):
    from websockets.sync.client import connect

    before = counted()
    with pytest.raises(ConnectionRefusedError):
        connect("ws://127.0.0.1:9/v1/realtime?model=m", open_timeout=2)
    assert counted() == before + 1

"""Callers who hang up, engines that are away or die, too many calls: each ends in one clear way."""

import asyncio
import time
from collections.abc import Callable
from functools import partial

import httpx
import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.spans.packing import unpack_token_ids

from lightning_trainer.errors import EngineError
from lightning_trainer.gateway.calls.slots import Slots
from lightning_trainer.ingest.http.bodies import read_body
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.types import SpanStatus


class _Pause:
    """Holds the engine before a token."""

    def __init__(self, before: int) -> None:
        self._before = before
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()

    async def __call__(self, position: int) -> None:
        if position == self._before:
            self.reached.set()
            await self.go_on.wait()


async def test_a_caller_who_leaves_a_stream_cancels_it_and_what_was_sampled_is_recorded(gateway) -> None:
    gateway.engine.pace = pause = _Pause(2)
    async with gateway.http.stream("POST", "/v1/chat/completions", json=gateway.body(stream=True)) as answer:
        received = b""
        async for piece in answer.aiter_bytes():
            received += piece
            if b"caf" in received:
                break
        await pause.reached.wait()
    span = await gateway.record()
    await asyncio.wait_for(gateway.engine.cancelled.wait(), 10)
    assert span.attributes[semconv.STREAM_COMPLETE] is False
    assert (span.status, span.status_message) == (SpanStatus.ERROR, "the caller disconnected")
    assert unpack_token_ids(span.attributes[semconv.response_token_ids(0)]) == (100, 101)
    assert span.attributes[semconv.POLICY_VERSION] == 3


async def test_a_caller_who_does_not_wait_for_a_response_cancels_it(gateway) -> None:
    gateway.engine.pace = pause = _Pause(2)
    call = asyncio.create_task(gateway.post())
    await pause.reached.wait()
    call.cancel()
    span = await gateway.record()
    await asyncio.wait_for(gateway.engine.cancelled.wait(), 10)
    assert (span.attributes[semconv.STREAM_COMPLETE], span.status) == (False, SpanStatus.ERROR)


async def test_a_caller_who_leaves_while_the_record_is_committed_gives_the_call_up(gateway) -> None:
    gateway.sink.hold = asyncio.Event()
    async with gateway.http.stream("POST", "/v1/chat/completions", json=gateway.body(stream=True)):
        await gateway.sink.asked.wait()
    await asyncio.sleep(0.05)
    gateway.sink.hold.set()
    note = await gateway.record(2)
    record = gateway.sink.spans[0]
    assert (record.attributes[semconv.STREAM_COMPLETE], note.parent_span_id) == (True, record.span_id)
    (call,) = read_spans(gateway.sink.spans).calls
    assert (call.response_ids, call.complete) == (tuple(gateway.engine.tokens(0)), False)


async def test_a_call_waits_for_an_engine_that_is_starting(gateway) -> None:
    gateway.endpoint.up.clear()
    call = asyncio.create_task(gateway.post())
    await asyncio.sleep(0.1)
    assert not call.done()
    gateway.endpoint.up.set()
    assert (await call).status_code == 200


async def test_a_call_outlives_an_engine_that_died_unnoticed(gateway, monkeypatch) -> None:
    asked = []

    def base_url(_) -> str:
        asked.append(1)
        if len(asked) == 1:
            raise EngineError("the engine is not running")
        return gateway.engine_url

    monkeypatch.setattr(type(gateway.endpoint), "base_url", property(base_url), raising=False)
    assert (await gateway.post()).status_code == 200
    assert len(asked) == 2


async def test_an_engine_that_stays_away_is_503_after_the_queue_timeout(open_gateway) -> None:
    async with open_gateway(queue_timeout_s=0.3) as gateway:
        gateway.endpoint.up.clear()
        began = time.monotonic()
        answer = await gateway.post()
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert "not ready" in answer.json()["error"]["message"]
        assert 0.2 < time.monotonic() - began < 5
        gateway.endpoint.up.set()
        gateway.endpoint.base_url = "http://127.0.0.1:9"  # nobody listens there
        answer = await gateway.post()
        assert answer.status_code == 503
        assert "has not been reachable for 0 s" in answer.json()["error"]["message"]


@pytest.fixture
async def dropping_server():
    """A server that closes every connection on the first bytes, and calls back."""

    async def drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        for callback in callbacks:
            callback()
        writer.close()

    callbacks: list[Callable[[], None]] = []
    async with await asyncio.start_server(drop, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", callbacks


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_an_engine_dropped_is_made_again_where_it_is_restarted(
    gateway, dropping_server, stream
) -> None:
    gateway.endpoint.base_url, callbacks = dropping_server
    callbacks.append(lambda: setattr(gateway.endpoint, "base_url", gateway.engine_url))
    assert (await gateway.post(stream=stream)).status_code == 200
    assert len(gateway.sink.spans) == len(gateway.engine.requests) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_dies_on_a_call_twice_is_503(gateway, dropping_server, stream: bool) -> None:
    dropped = []
    gateway.endpoint.base_url, callbacks = dropping_server
    callbacks.append(lambda: dropped.append(1))
    answer = await gateway.post(stream=stream)
    assert answer.status_code == 503
    assert "dropped the request 2 times" in answer.json()["error"]["message"]
    assert len(dropped) == 2
    assert gateway.sink.spans == []


async def test_an_engine_that_dies_within_a_stream_ends_it_with_an_error(gateway) -> None:
    gateway.engine.cut_after = 3
    answer = await gateway.post(stream=True)
    assert answer.status_code == 200
    assert "the engine went away in the middle of the answer" in answer.text
    assert "[DONE]" not in answer.text
    span = await gateway.record()
    assert span.attributes[semconv.STREAM_COMPLETE] is False
    assert unpack_token_ids(span.attributes[semconv.response_token_ids(0)]) == (100, 101, 102)
    assert "went away" in span.status_message


async def test_calls_beyond_the_bound_are_429_until_one_has_ended(open_gateway) -> None:
    async with open_gateway(slots=Slots(2)) as gateway:
        gateway.engine.pace = pause = _Pause(0)
        calls = [asyncio.create_task(gateway.post(stream=stream)) for stream in (False, True)]
        async with asyncio.timeout(10):
            while len(gateway.engine.requests) < 2:
                await asyncio.sleep(0.005)
        refused = await gateway.post()
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.json()["error"]["code"] == "too_many_calls"
        pause.go_on.set()
        assert [(await call).status_code for call in calls] == [200, 200]
        for _ in range(3):
            assert (await gateway.post(stream=True)).status_code == 200
            assert (await gateway.post(model="unknown")).status_code == 404


@pytest.mark.parametrize("stream", [False, True])
async def test_a_daemon_that_stops_waits_for_the_calls_in_flight_and_takes_no_more(open_gateway, stream) -> None:
    slots = Slots(2)
    async with open_gateway(slots=slots) as gateway:
        gateway.engine.pace = pause = _Pause(2)
        call = asyncio.create_task(gateway.post(stream=stream))
        await asyncio.wait_for(pause.reached.wait(), 10)
        await slots.drain(0)  # it does not wait for ever
        draining = asyncio.create_task(slots.drain(60))
        refused = await gateway.post()
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert "is stopping" in refused.json()["error"]["message"]
        assert not draining.done()
        pause.go_on.set()
        assert (await call).status_code == 200
        await asyncio.wait_for(draining, 10)
        assert (await gateway.record()).attributes[semconv.STREAM_COMPLETE] is True


async def test_an_engine_that_sends_elsewhere_is_not_followed(gateway) -> None:
    gateway.engine.redirect = f"{gateway.engine_url}/lightning/version"
    for stream in (False, True):
        answer = await gateway.post(stream=stream)
        assert (answer.status_code, "the engine answered 307" in answer.json()["error"]["message"]) == (502, True)
    assert len(gateway.engine.requests) == 2
    assert gateway.sink.spans == []


async def test_a_body_that_stops_coming_is_told_so_and_not_how_long_a_whole_one_may_take(gateway, monkeypatch) -> None:
    monkeypatch.setattr("lightning_trainer.gateway.handler.read_body", partial(read_body, idle_s=0.05))
    reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: 100\r\n\r\nabc".encode())
    said = await asyncio.wait_for(reader.read(), 10)
    assert b" 408 " in said
    assert b"3 bytes of the body came, and then none for 0.05 s" in said
    writer.close()


async def test_a_body_that_does_not_come_gives_its_place_back(open_gateway, monkeypatch) -> None:
    monkeypatch.setattr("lightning_trainer.gateway.handler._BODY_TIMEOUT_S", 0.05)
    async with open_gateway(slots=Slots(1)) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: 100\r\n\r\n".encode())
        assert b" 408 " in await asyncio.wait_for(reader.readline(), 10)
        writer.close()
        assert (await gateway.post()).status_code == 200


async def test_many_callers_at_once_each_get_their_own(gateway) -> None:
    async def call(number: int) -> str:
        answer = await gateway.post(stream=bool(number % 2), n=1 + number % 3)
        assert answer.status_code == 200
        return answer.headers["x-lightning-policy"]

    await asyncio.gather(*(call(number) for number in range(60)))
    assert len(gateway.sink.spans) == 60
    assert len({span.span_id for span in gateway.sink.spans}) == 60
    assert {span.attributes[semconv.STREAM_COMPLETE] for span in gateway.sink.spans} == {True}


async def test_a_caller_who_is_cut_off_leaves_nothing_behind(gateway) -> None:
    gateway.engine.pace = _Pause(1)
    with pytest.raises(httpx.ReadTimeout):
        await gateway.http.post("/v1/chat/completions", json=gateway.body(), timeout=httpx.Timeout(10, read=0.1))
    await gateway.record()
    gateway.engine.pace = None
    assert (await gateway.post()).status_code == 200


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions", "/v1/messages/count_tokens"])
@pytest.mark.parametrize("field", ["tools", "prompt", "tool_choice"])
async def test_a_body_that_cannot_be_written_again_is_the_callers_mistake(gateway, route, field) -> None:
    deep = b"[" * 400 + b"]" * 400
    body = b'{"model": "sql", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}], '
    answer = await gateway.http.post(
        route,
        content=body + f'"{field}": '.encode() + deep + b"}",
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 400, answer.text
    assert "nested too deeply" in answer.text


async def test_a_limit_beyond_what_a_span_holds_is_the_engines_to_refuse_and_loses_no_record(gateway) -> None:
    answer = await gateway.post(max_tokens=2**63)
    assert answer.status_code == 200
    assert semconv.REQUEST_MAX_TOKENS not in (await gateway.record()).attributes

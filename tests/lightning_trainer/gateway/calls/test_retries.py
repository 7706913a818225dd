"""A client's retries do not become two samples; calls that only look alike stay apart."""

import asyncio
import contextlib
from typing import Any

import httpx
import openai
import pytest
from lightning_instrumentation import semconv

from lightning_trainer.errors import StoreError
from lightning_trainer.ingest.reading import read_spans

_TRACE = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
_COPY = {f"x-lightning-{name}": value for name, value in _TRACE.items()}
_AGAIN = {"x-stainless-retry-count": "1"}


class _Held:
    """Holds the first request at a token; later ones go through."""

    def __init__(self, before: int = 2) -> None:
        self._before = before
        self._first = True
        self.reached = asyncio.Event()

    async def __call__(self, position: int) -> None:
        if self._first and position == self._before:
            self._first = False
            self.reached.set()
            await asyncio.Event().wait()


def _complete(gateway) -> list[bool]:
    return [call.complete for call in read_spans(gateway.sink.spans).calls]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_timed_out_and_tried_again_leaves_one_sample(gateway, stream: bool) -> None:
    gateway.engine.pace = _Held()
    asked: Any = {"model": "sql", "messages": [{"role": "user", "content": "?"}], "stream": stream}
    async with openai.AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key="none", max_retries=1, timeout=0.5, default_headers=_TRACE
    ) as client:
        try:
            answer = await client.chat.completions.create(**asked)
            if stream:
                _ = [chunk async for chunk in answer]
        except openai.APIError:  # a stream that stalls after its start is not tried again
            assert stream
            answer = await client.chat.completions.create(**asked)
            _ = [chunk async for chunk in answer]
    await gateway.record(2)
    await asyncio.wait_for(gateway.engine.cancelled.wait(), 10)
    assert sorted(_complete(gateway)) == [False, True]


@pytest.mark.parametrize(
    "headers",
    [{"idempotency-key": "k1"}, {**_TRACE, **_AGAIN}, {**_COPY, **_AGAIN}],
    ids=["key", "trace", "copy"],
)
async def test_a_try_that_still_runs_is_cancelled_by_the_next(gateway, headers) -> None:
    gateway.engine.pace = held = _Held()
    first_headers = {name: value for name, value in headers.items() if name not in _AGAIN}
    first = asyncio.create_task(gateway.post(first_headers))
    await held.reached.wait()
    assert (await gateway.post(headers)).status_code == 200
    refused = await first
    assert (refused.status_code, "made again" in refused.json()["error"]["message"]) == (409, True)
    await asyncio.wait_for(gateway.engine.cancelled.wait(), 10)
    assert sorted(_complete(gateway)) == [False, True]
    assert {span.status_message for span in gateway.sink.spans} == {"", "the caller tried again"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("headers", [{"idempotency-key": "k1"}, {**_TRACE, **_AGAIN}], ids=["key", "trace"])
async def test_a_try_that_was_answered_and_never_read_is_taken_back(gateway, headers, stream: bool) -> None:
    first_headers = {name: value for name, value in headers.items() if name not in _AGAIN}
    await gateway.post(first_headers, stream=stream)
    await gateway.post(headers, stream=stream)
    record, note, again = gateway.sink.spans
    assert (note.parent_span_id, note.attributes[semconv.CALL_ABANDONED]) == (record.span_id, True)
    calls = {call.span_id: call.complete for call in read_spans(gateway.sink.spans).calls}
    assert calls == {record.span_id: False, again.span_id: True}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {}),
        ({}, _AGAIN),
        (_TRACE, _TRACE),
        ({"idempotency-key": "k1"}, {"idempotency-key": "k2"}),
        ({"idempotency-key": "k" * 300}, {"idempotency-key": "k" * 300}),
        (_TRACE, {"traceparent": f"00-{'a' * 32}-{'c' * 16}-01", **_AGAIN}),
    ],
)
async def test_calls_that_look_alike_are_two_samples(gateway, first, second) -> None:
    await gateway.post(first)
    await gateway.post(second)
    assert _complete(gateway) == [True, True]


async def test_a_key_is_of_one_attempt(gateway) -> None:
    for attempt in ("a", "b"):
        baggage = f"{semconv.ROLLOUT_ID}=r,{semconv.ATTEMPT_ID}={attempt}"
        await gateway.post({"idempotency-key": "1", "baggage": baggage})
    assert _complete(gateway) == [True, True]


async def test_another_body_is_another_call(gateway) -> None:
    await gateway.post({"idempotency-key": "k"}, seed=1)
    await gateway.post({"idempotency-key": "k"}, seed=2)
    assert _complete(gateway) == [True, True]


async def test_where_several_calls_may_be_the_earlier_try_none_is_taken_for_it(gateway) -> None:
    await gateway.post(_TRACE)
    await gateway.post(_TRACE)
    await gateway.post({**_TRACE, **_AGAIN})
    assert _complete(gateway) == [True, True, True]


async def test_a_retry_waits_until_the_earlier_record_can_be_taken_back(gateway) -> None:
    await gateway.post({"idempotency-key": "k"})
    gateway.sink.error = StoreError("the disk is full")
    answer = await gateway.post({"idempotency-key": "k"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert len(gateway.engine.requests) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_we_could_not_write_is_taken_back(gateway, monkeypatch, stream: bool) -> None:
    def fail(*_: object) -> bytes:
        raise RuntimeError("a bug")

    for method in ("whole", "chunk"):
        monkeypatch.setattr(f"lightning_trainer.gateway.protocols.openai_answer.OpenAIAnswer.{method}", fail)
    with contextlib.suppress(httpx.RemoteProtocolError):
        assert (await gateway.post(stream=stream)).status_code == 500
    async with asyncio.timeout(10):
        while not _complete(gateway) or any(_complete(gateway)):
            await asyncio.sleep(0.01)


async def test_a_client_that_hangs_up_at_the_last_token_has_had_its_answer(gateway) -> None:
    async with gateway.http.stream("POST", "/v1/chat/completions", json=gateway.body(stream=True)) as answer:
        received = b""
        async for piece in answer.aiter_bytes():
            received += piece
            if b'"finish_reason":"stop"' in received:
                break
    await gateway.record()
    assert _complete(gateway) == [True]

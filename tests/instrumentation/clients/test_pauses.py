"""Streams that pause: what the caller read in the end is recorded, whatever ended the reads before."""

import asyncio
import json
import sys
import time

import aiohttp
import lightning_instrumentation as lt
import openai
import pytest
from lightning_instrumentation import semconv

_stubs = sys.modules["lightning_test_stubs"]
ASKED = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello"}]}


class Pausing(_stubs._Server):
    """Answers with a stream of parts; a number is a pause in seconds."""

    def __init__(self) -> None:
        pausing = self

        class Handler(_stubs._Handler):
            def do_POST(self) -> None:
                self.read()
                self.answer(200, headers={"content-type": "text/event-stream", "transfer-encoding": "chunked"})
                for part in (*pausing.parts, b""):
                    if isinstance(part, float):
                        time.sleep(part)
                    else:
                        self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))

            def send_header(self, name: str, value: str) -> None:
                if name != "content-length":
                    super().send_header(name, value)

        super().__init__(Handler)
        self.parts: list = []


@pytest.fixture
def pausing():
    server = Pausing()
    server.start()
    yield server
    server.stop()


def event(content: str, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish_reason}
    chunk = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


FIRST, LAST, DONE = event("one "), event("two", "stop"), b"data: [DONE]\n\n"


@pytest.fixture(params=[False, True], ids=["stranger", "trusted"])
def recorded(request, receiver, pausing, tmp_path):
    """Return the only call's span, recorded with a server that is trusted or not."""
    lt.shutdown(0.0)
    lt.init(receiver.url, spool_dir=tmp_path, trusted_hosts=[pausing.url] if request.param else [])

    def span():
        assert lt.flush(10.0)
        (found,) = receiver.spans("chat")
        return found

    yield span
    lt.shutdown(1.0)


def is_whole(span) -> bool:
    parts = json.loads(span.attributes[semconv.OUTPUT_MESSAGES])[0]["parts"]
    return (span.error, span.attributes[semconv.STREAM_COMPLETE], parts[0]["content"]) == (None, True, "one two")


async def test_a_connection_that_stays_open_after_the_last_event_fails_no_call(recorded, pausing):
    # The openai client waits for its end for a tenth of a second, and then cancels its own read.
    pausing.parts = [FIRST, LAST, DONE, 0.4]
    async with openai.AsyncOpenAI(base_url=f"{pausing.url}/v1", api_key="none", max_retries=0) as client:
        assert len([chunk async for chunk in await client.chat.completions.create(**ASKED)]) == 2
    assert is_whole(recorded())


async def test_who_reads_on_after_a_read_that_took_too_long_has_the_whole_answer(recorded, pausing):
    pausing.parts = [FIRST, 0.4, LAST, DONE]
    read, waited = b"", 0
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{pausing.url}/v1/chat/completions", json=ASKED) as response,
    ):
        while not read.endswith(DONE):
            try:
                read += await asyncio.wait_for(response.content.readany(), 0.15)
            except TimeoutError:
                waited += 1
    assert (read, waited > 0) == (FIRST + LAST + DONE, True)
    assert is_whole(recorded())


async def test_who_leaves_after_a_read_that_took_too_long_is_recorded_so(recorded, pausing):
    pausing.parts = [FIRST, 0.4, LAST, DONE]
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{pausing.url}/v1/chat/completions", json=ASKED) as response,
    ):
        await response.content.readany()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(response.content.readany(), 0.1)
    span = recorded()
    assert span.attributes[semconv.STREAM_COMPLETE] is False
    assert span.attributes[semconv.ERROR_TYPE].endswith("CancelledError")

"""Clients on top of HTTP libraries, and the edges of capture: errors, limits, encodings, what is left alone."""

import asyncio
import gc
import json
import pickle
from typing import Any

import aiohttp
import httpx
import httpx2
import lightning_instrumentation as lt
import openai
import pytest
import requests
from lightning_instrumentation import runtime, semconv
from lightning_instrumentation.wire.call import silence
from opentelemetry import context

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"name": "calc", "input_schema": {"type": "object", "properties": {"expression": {"type": "string"}}}}
KEY = "sk-ant-very-secret"


@pytest.fixture
def claude(model):
    import anthropic

    with anthropic.Anthropic(base_url=model.url, api_key=KEY, max_retries=0) as client:
        yield client


def create(client, **more):
    return client.messages.create(model="claude", max_tokens=9, messages=HELLO, **more)


def ways(client) -> list:
    """Every way to ask the anthropic client, as the caller sees it."""
    with client.messages.stream(model="claude", max_tokens=9, messages=HELLO) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    with client.messages.with_streaming_response.create(model="claude", max_tokens=9, messages=HELLO) as unread:
        lines = list(unread.iter_lines())
    return [
        create(client).model_dump(),
        create(client, tools=[TOOL]).model_dump(),
        [event.model_dump() for event in create(client, stream=True)],
        [event.model_dump() for event in create(client, stream=True, tools=[TOOL])],
        client.messages.with_raw_response.create(model="claude", max_tokens=9, messages=HELLO).parse().model_dump(),
        text,
        final.model_dump(),
        lines,
    ]


def test_the_anthropic_client_is_captured_and_cannot_tell(recording, claude):
    watched = ways(claude)
    with silence():
        unwatched = ways(claude)
    assert watched == unwatched
    spans = recording.spans("chat claude")
    assert len(spans) == 7
    for span in spans:
        assert span.attributes[semconv.PROVIDER_NAME] == "anthropic"
        assert span.attributes[semconv.RESPONSE_ID] == "msg_hello"
        assert span.attributes[semconv.INPUT_TOKENS] == span.attributes[semconv.OUTPUT_TOKENS] == 3
        (message,) = json.loads(span.attributes[semconv.OUTPUT_MESSAGES])
        parts = [{"type": "text", "content": "answer to hello "}]
        if semconv.TOOL_DEFINITIONS in span.attributes:
            call = {"type": "tool_call", "id": "toolu_1", "name": "calc", "arguments": {"expression": "2+3"}}
            assert (message["parts"], message["finish_reason"]) == ([*parts, call], "tool_use")
        else:
            assert (message["parts"], message["finish_reason"]) == (parts, "end_turn")
    assert KEY not in repr(recording.spans())


async def test_the_async_anthropic_client_is_captured_with_its_agent(recording, model):
    import anthropic

    async with anthropic.AsyncAnthropic(base_url=model.url, api_key=KEY) as client:

        async def one(number):
            async with lt.rollout(f"t{number}", rollout_id=f"r{number}"):

                @lt.agent(f"agent{number}")
                async def speak():
                    asked: list = [{"role": "user", "content": f"question {number}"}]
                    async with client.messages.stream(model="claude", max_tokens=9, messages=asked) as stream:
                        return await stream.get_final_text()

                return await speak()

        answers = await asyncio.gather(*(one(number) for number in range(40)))
    spans = recording.spans("chat")
    assert len(spans) == 40
    for span in spans:
        number = json.loads(span.attributes[semconv.INPUT_MESSAGES])[0]["parts"][0]["content"].split()[1]
        assert span.attributes[semconv.ROLLOUT_ID] == f"r{number}"
        assert span.attributes[semconv.AGENT_NAME] == f"agent{number}"
        said = json.loads(span.attributes[semconv.OUTPUT_MESSAGES])[0]["parts"][0]["content"]
        assert answers[int(number)] == said


def test_a_conversation_with_tools_reads_the_same_in_every_format(recording, claude):
    claude.messages.create(
        model="claude",
        max_tokens=9,
        system="be brief",
        messages=[
            *HELLO,
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "calc", "input": {"x": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "2"}]},
        ],
    )
    assert json.loads(recording.span("chat").attributes[semconv.INPUT_MESSAGES]) == [
        {"role": "system", "parts": [{"type": "text", "content": "be brief"}]},
        {"role": "user", "parts": [{"type": "text", "content": "hello"}]},
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "t", "name": "calc", "arguments": {"x": 1}}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "t", "response": "2"}]},
    ]


def chat(said="hello", **more):
    return {"model": "m", "messages": [{"role": "user", "content": said}], **more}


def test_an_error_status_is_an_answer_to_the_caller_and_an_error_on_the_span(recording, model):
    url = f"{model.base_url}/chat/completions?key={KEY}"
    assert httpx.post(url, json=chat("status 429")).status_code == 429
    assert requests.post(url, json=chat("status 429"), timeout=9).status_code == 429
    spans = recording.spans("chat")
    assert [span.attributes[semconv.ERROR_TYPE] for span in spans] == ["429", "429"]
    assert KEY not in repr(spans)


def test_a_connection_that_fails_is_raised_unchanged_and_recorded_without_the_key(recording):
    url = f"http://127.0.0.1:9/v1/chat/completions?key={KEY}"
    with pytest.raises(requests.ConnectionError, match=KEY):
        requests.post(url, json=chat(), timeout=9)
    with pytest.raises(httpx.ConnectError):
        httpx.post(url, json=chat())
    spans = recording.spans("chat")
    assert [bool(span.error) for span in spans] == [True, True]
    assert KEY not in repr(spans)


@pytest.mark.long
def test_a_stream_that_is_left_ends_its_span(recording, model):
    url = f"{model.base_url}/chat/completions"
    with httpx.Client() as client:
        with client.stream("POST", url, json=chat("slow", stream=True)) as response:
            next(response.iter_lines())
        response = client.send(client.build_request("POST", url, json=chat("slow", stream=True)), stream=True)
        assert len(recording.spans("chat")) == 1
        del response
        gc.collect()
        assert len(recording.spans("chat")) == 2
    with requests.post(url, json=chat("slow", stream=True), stream=True, timeout=9) as response:
        next(response.iter_content(1))
    assert len(recording.spans("chat")) == 3

    async def leave():
        async with aiohttp.ClientSession() as session, session.post(url, json=chat("slow", stream=True)) as response:
            await response.content.readline()

    asyncio.run(leave())
    spans = recording.spans("chat")
    assert len(spans) == 4
    # aiohttp reads ahead: whether the last one was complete when its caller left is up to the network.
    assert [span.attributes[semconv.STREAM_COMPLETE] for span in spans[:3]] == [False] * 3


@pytest.mark.parametrize("library", ["httpx", "openai"])
def test_a_stream_that_was_read_to_its_last_event_has_ended_then(recording, model, library):
    """Before, only with the next span: a program that was killed before it began one had lost its last call."""
    started = runtime.runtime()
    assert started is not None
    if library == "openai":
        with openai.OpenAI(base_url=model.base_url, api_key=KEY) as client:
            hello: Any = HELLO
            assert list(client.chat.completions.create(model="m", messages=hello, stream=True))
    else:
        with httpx.stream("POST", f"{model.base_url}/chat/completions", json=chat(stream=True)) as response:
            assert next(line for line in response.iter_lines() if line == "data: [DONE]")
    assert started.outbox.waiting + started.outbox.sender.delivered == 1
    (span,) = recording.spans("chat")
    assert span.attributes[semconv.STREAM_COMPLETE] is True


def test_a_cut_connection_is_an_error_for_the_caller_and_on_the_span(recording, model):
    url = f"{model.base_url}/chat/completions"
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.post(url, json=chat("cut", stream=True))
    with (
        pytest.raises(requests.exceptions.ChunkedEncodingError),
        requests.post(url, json=chat("cut", stream=True), stream=True, timeout=9) as response,
    ):
        response.content  # noqa: B018

    async def read():
        async with aiohttp.ClientSession() as session, session.post(url, json=chat("cut", stream=True)) as response:
            await response.read()

    with pytest.raises(aiohttp.ClientPayloadError):
        asyncio.run(read())
    assert [bool(span.error) for span in recording.spans("chat")] == [True, True, True]


def test_compressed_answers_of_strangers_are_read(receiver, model, tmp_path):
    lt.shutdown(0.0)
    lt.init(receiver.url, spool_dir=tmp_path)
    url = f"{model.base_url}/chat/completions"
    with httpx.stream("POST", url, json=chat()) as response:
        assert response.headers["content-encoding"] == "gzip"
        assert b"".join(response.iter_raw())[:2] == b"\x1f\x8b"
    with requests.post(url, json=chat(), stream=True, timeout=9) as response:
        assert response.raw.read()[:2] == b"\x1f\x8b"
    lt.shutdown()
    for span in receiver.spans("chat"):
        assert "answer0 to hello" in span.attributes[semconv.OUTPUT_MESSAGES]
    assert len(receiver.spans("chat")) == 2


def test_bodies_over_the_limit_are_not_read_and_are_counted(receiver, model, tmp_path):
    lt.shutdown(0.0)
    lt.init(receiver.url, spool_dir=tmp_path, trusted_hosts=[model.url], max_body_bytes=2000)
    before = lt.stats().failed
    url = f"{model.base_url}/chat/completions"
    long = "word " * 1000
    assert len(httpx.post(url, json=chat(long)).json()["choices"]) == 1
    short_question = chat("hello", n=20)
    assert len(httpx.post(url, json=short_question).json()["choices"]) == 20
    with httpx.stream("POST", url, json={**short_question, "stream": True}) as response:
        assert b"".join(response.iter_bytes()).endswith(b"data: [DONE]\n\n")
    client = openai.OpenAI(base_url=model.base_url, api_key=KEY)
    assert client.chat.completions.create(model="m", messages=[{"role": "user", "content": long}]).choices
    failed = lt.stats().failed
    assert failed["request-over-limit"] - before.get("request-over-limit", 0) == 2
    assert failed["response-over-limit"] - before.get("response-over-limit", 0) == 3
    lt.shutdown()
    assert len(receiver.spans("chat")) == 3


@pytest.mark.parametrize("value", ["0", "many", "-1"])
def test_a_limit_that_is_none_is_refused_with_its_value(value, monkeypatch, tmp_path):
    lt.shutdown(0.0)
    monkeypatch.setenv("LIGHTNING_MAX_BODY_BYTES", value)
    with pytest.raises(lt.ConfigurationError, match=f"max_body_bytes is '{value}'.*LIGHTNING_MAX_BODY_BYTES"):
        lt.init("http://127.0.0.1:9", spool_dir=tmp_path)


def test_what_is_no_model_call_is_left_alone(recording, model):
    httpx.post(f"{model.base_url}/embeddings", json={"model": "m", "input": "x"})
    httpx.post(f"{model.url}/v1/messages", json={"to": "+1555", "messages": [{"content": "hi"}], "model": None})
    httpx.get(f"{model.url}/v1/responses")
    requests.post(f"{model.url}/survey/responses", json={"input": "fine"}, timeout=9)
    assert recording.spans() == []
    assert not any("traceparent" in headers for _, headers, _ in model.requests)


def test_a_request_that_is_not_to_be_recorded_is_not_looked_at(recording):
    before = lt.stats().failed
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json={}))
    with silence(), httpx.Client(transport=transport) as client:
        client.post("http://unread/v1/chat/completions", content=iter([b"{}"]))
    assert recording.spans() == []
    assert lt.stats().failed == before


def test_what_the_user_set_is_never_overwritten(recording, model):
    mine = {"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-00", "Baggage": "mine=1"}
    document = chat(logprobs=False, return_token_ids=False)
    url = f"{model.base_url}/chat/completions"
    httpx.post(url, json=document, headers=mine)
    requests.post(url, json=document, headers=mine, timeout=9)

    async def post():
        async with aiohttp.ClientSession(headers=mine) as session, session.post(url, json=document) as response:
            await response.read()

    asyncio.run(post())
    assert len(model.requests) == 3
    for _, headers, sent in model.requests:
        assert sent == document
        assert (headers["traceparent"], headers["baggage"]) == (mine["traceparent"], "mine=1")


def test_the_callers_request_and_session_stay_as_they_are(recording, model):
    url = f"{model.base_url}/chat/completions"
    response = httpx.post(url, json=chat())
    assert json.loads(response.request.content) == chat()
    assert "traceparent" not in response.request.headers
    answer = requests.post(url, json=chat(), timeout=9)
    body = answer.request.body
    assert isinstance(body, bytes)
    assert json.loads(body) == chat()
    assert int(response.headers["content-length"]) == len(response.content)
    assert response.elapsed.total_seconds() > 0


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_who_reads_an_answer_twice_gets_two_documents(recording, model, library):
    response = library.post(f"{model.base_url}/chat/completions", json=chat("hello"))
    as_sent = json.loads(response.content)
    first, second = response.json(), response.json()
    assert first == second == as_sent
    first["choices"].clear()
    assert second == response.json() == json.loads(response.content) == as_sent
    again = library.post(f"{model.base_url}/chat/completions", json=chat("hello"))
    assert again.json(parse_float=str) == again.json(object_pairs_hook=dict)
    assert pickle.loads(pickle.dumps(again)).json() == again.json()
    assert recording.spans("chat")[0].attributes[semconv.OUTPUT_MESSAGES]


def suppressed_by_others(call):
    """As Logfire's instrumentation of the openai client runs every call, and exporters their own requests."""
    token = context.attach(context.set_value("suppress_instrumentation", True))
    try:
        return call()
    finally:
        context.detach(token)


def test_what_other_instrumentations_suppress_is_captured(recording, model):
    # Before: no span and no routing, without a word, beside logfire.instrument_openai()
    url = f"{model.base_url}/chat/completions"
    suppressed_by_others(lambda: httpx.post(url, json=chat()))
    suppressed_by_others(lambda: requests.post(url, json=chat(), timeout=9))
    assert len(recording.spans("chat")) == 2


def test_requests_of_others_exporters_are_no_model_calls(recording, model):
    suppressed_by_others(lambda: requests.post(f"{model.base_url}/traces", data=b"\n\x00", timeout=9))
    assert recording.spans() == []
    assert "traceparent" not in model.requests[-1][1]

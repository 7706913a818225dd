"""The openai client beyond chat: responses, completions, raw and streaming responses, retries; seen by the caller."""

import json

import httpx
import lightning_instrumentation as lt
import openai
import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.spans.packing import unpack_logprobs, unpack_token_ids
from lightning_instrumentation.wire.call import silence
from pydantic import BaseModel

HELLO: list = [{"role": "user", "content": "hello there"}]
TOOL = {"type": "function", "name": "calc", "parameters": {"type": "object", "properties": {}, "required": []}}


class Parsed(BaseModel):
    x: int


@pytest.fixture
def client(model):
    with openai.OpenAI(base_url=model.base_url, api_key="k", max_retries=2) as client:
        yield client


@pytest.fixture
async def async_client(model):
    async with openai.AsyncOpenAI(base_url=model.base_url, api_key="k", max_retries=2) as client:
        yield client


def sampled(model, text):
    return model.ids(["answer ", "to ", *(f"{word} " for word in text.split())])


def responses_ways(client) -> list:
    create = client.responses.create
    with client.responses.stream(model="m", input="json", text_format=Parsed) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_response().output_parsed
    with client.responses.with_streaming_response.create(model="m", input="hello there") as unread:
        unread_json = json.loads(unread.read())
    raw = client.responses.with_raw_response.create(model="m", input="hello there")
    return [
        create(model="m", input="hello there").model_dump(),
        create(model="m", input=HELLO, instructions="be brief").model_dump(),
        create(model="m", input="hello there", tools=[TOOL]).model_dump(),
        [event.model_dump() for event in create(model="m", input="hello there", stream=True)],
        [event.model_dump() for event in create(model="m", input="hello there", stream=True, tools=[TOOL])],
        client.responses.parse(model="m", input="json", text_format=Parsed).output_parsed,
        (events, final),
        unread_json,
        raw.http_response.json(),
        raw.parse().model_dump(),
    ]


def completions_ways(client) -> list:
    create = client.completions.create
    with client.completions.with_streaming_response.create(model="m", prompt="hello there", stream=True) as unread:
        lines = list(unread.iter_lines())
    return [
        create(model="m", prompt="hello there").model_dump(),
        create(model="m", prompt="hello there", n=2).model_dump(),
        create(model="m", prompt="hello there", logprobs=1).model_dump(),
        [chunk.model_dump() for chunk in create(model="m", prompt="hello there", stream=True)],
        client.completions.with_raw_response.create(model="m", prompt="hello there").parse().model_dump(),
        lines,
    ]


@pytest.mark.parametrize(("ways", "calls"), [(responses_ways, 9), (completions_ways, 6)])
def test_answers_are_the_same_with_and_without_us_and_have_the_engines_ids(recording, client, ways, calls):
    watched = ways(client)
    with silence():
        assert watched == ways(client)
    spans = [*recording.spans("chat"), *recording.spans("text_completion")]
    assert len(spans) == calls
    for span in spans:
        said = json.loads(span.attributes[semconv.INPUT_MESSAGES])[-1]["parts"][0]["content"]
        ids = recording.model.ids(['{"x":', "7}"]) if said == "json" else sampled(recording.model, said)
        for choice in range(span.attributes[semconv.CHOICES]):
            assert list(unpack_token_ids(span.attributes[semconv.response_token_ids(choice)])) == ids
        prompt = list(unpack_token_ids(span.attributes[semconv.PROMPT_TOKEN_IDS]))
        assert prompt == recording.model.ids(said.split())
        if span.name.startswith("text"):
            assert len(unpack_logprobs(span.attributes[semconv.response_logprobs(0)])) == len(ids)


async def test_async_responses_and_completions_are_the_same_and_captured(recording, async_client):
    async def ways() -> list:
        responses, completions = async_client.responses, async_client.completions
        async with responses.stream(model="m", input="hello there") as stream:
            final = await stream.get_final_response()
        async with responses.with_streaming_response.create(model="m", input="hello there", stream=True) as unread:
            lines = [line async for line in unread.iter_lines()]
        return [
            final.model_dump(),
            lines,
            (await responses.create(model="m", input="hello there")).model_dump(),
            [e.model_dump() async for e in await responses.create(model="m", input="hello there", stream=True)],
            (await responses.parse(model="m", input="json", text_format=Parsed)).output_parsed,
            (await completions.create(model="m", prompt="hello there")).model_dump(),
            [c.model_dump() async for c in await completions.create(model="m", prompt="hello there", stream=True)],
        ]

    watched = await ways()
    with silence():
        assert watched == await ways()
    spans = [*recording.spans("chat"), *recording.spans("text_completion")]
    assert len(spans) == 7
    assert all(semconv.response_token_ids(0) in span.attributes for span in spans)


def test_a_tool_call_of_the_responses_api(recording, client):
    given = [
        {"role": "user", "content": [{"type": "input_text", "text": "what"}]},
        {"type": "function_call", "call_id": "c", "name": "calc", "arguments": '{"x": 1}'},
        {"type": "function_call_output", "call_id": "c", "output": "2"},
    ]
    client.responses.create(model="m", input=given, instructions="be brief", tools=[TOOL])
    span = recording.span("chat")
    assert json.loads(span.attributes[semconv.INPUT_MESSAGES]) == [
        {"role": "system", "parts": [{"type": "text", "content": "be brief"}]},
        {"role": "user", "parts": [{"type": "text", "content": "what"}]},
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "calc", "arguments": {"x": 1}}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": "2"}]},
    ]
    (message,) = json.loads(span.attributes[semconv.OUTPUT_MESSAGES])
    call = {"type": "tool_call", "id": "call_1", "name": "calc", "arguments": {"expression": "2+3"}}
    assert (message["parts"], message["finish_reason"]) == ([call], "tool_calls")


def test_several_prompts_in_one_request_have_no_exact_ids(recording, client):
    client.completions.create(model="m", prompt=["one", "two"])
    span = recording.span("text_completion")
    assert [m["parts"][0]["content"] for m in json.loads(span.attributes[semconv.INPUT_MESSAGES])] == ["one", "two"]
    assert span.attributes[semconv.CHOICES] == 2
    assert semconv.PROMPT_TOKEN_IDS not in span.attributes
    assert semconv.response_token_ids(1) not in span.attributes


def test_embeddings_are_no_model_calls(recording, client):
    client.embeddings.create(model="m", input="x")
    assert recording.spans() == []


def test_a_stranger_gets_what_it_would_get_without_us(receiver, model, client, tmp_path):
    lt.shutdown(0.0)
    lt.init(receiver.url, spool_dir=tmp_path)
    client.responses.create(model="m", input="hello there")
    client.completions.create(model="m", prompt="hello there")
    lt.shutdown()
    assert [set(body) for _, _, body in model.requests] == [{"model", "input"}, {"model", "prompt"}]
    for _, headers, _ in model.requests:
        assert not {"traceparent", "baggage"} & set(headers)
    assert len([*receiver.spans("chat"), *receiver.spans("text_completion")]) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_retries_that_succeed_are_one_span_with_their_count(recording, client, stream):
    said = [{"role": "user", "content": f"flaky 2 {stream}"}]
    answer = client.chat.completions.create(model="m", messages=said, stream=stream)
    if stream:
        list(answer)
    span = recording.span("chat")
    assert len(recording.model.requests) == 3
    assert span.attributes[semconv.RETRIES] == 2
    assert span.error is None
    assert semconv.response_token_ids(0) in span.attributes


@pytest.mark.parametrize("helper", ["chat", "responses", "raw", "unread"])
def test_a_stream_left_early_ends_its_span_while_the_caller_still_holds_it(recording, client, helper):
    chat = {"model": "m", "messages": HELLO}
    if helper == "chat":
        with client.chat.completions.stream(**chat) as left:
            next(iter(left))
    elif helper == "responses":
        with client.responses.stream(model="m", input="hello there") as left:
            next(iter(left))
    elif helper == "raw":
        left = client.chat.completions.with_raw_response.create(**chat, stream=True)
        next(iter(left.parse()))
        left.http_response.close()
    else:
        with client.chat.completions.with_streaming_response.create(**chat, stream=True) as left:
            next(left.iter_lines())
    assert recording.span("chat").attributes[semconv.STREAM_COMPLETE] is False
    assert left is not None


def test_a_users_own_httpx_client_and_transport_are_captured(recording, model):
    class Own(httpx.HTTPTransport):
        pass

    with httpx.Client(transport=Own()) as http_client:
        client = openai.OpenAI(base_url=model.base_url, api_key="k", http_client=http_client)  # type: ignore[arg-type]
        client.chat.completions.create(model="m", messages=HELLO)
    span = recording.span("chat")
    assert span.attributes[semconv.CAPTURED_BY] == "openai"
    assert semconv.response_token_ids(0) in span.attributes


def test_a_conversation_that_openai_shortens_is_counted_once(recording):
    # Before: neither a span nor a count
    def shortened(request: httpx.Request) -> httpx.Response:
        return httpx.Response(
            200, json={"id": "resp_1", "object": "response.compaction", "created_at": 1, "output": []}
        )

    reason = "not-captured:responses-compact"
    before = lt.stats().failed
    with httpx.Client(transport=httpx.MockTransport(shortened)) as http_client:
        client = openai.OpenAI(base_url="http://openai.example/v1", api_key="k", http_client=http_client)  # type: ignore[arg-type]
        assert client.responses.compact(model="gpt-5.4", input="hello").id == "resp_1"
    assert recording.spans() == []
    assert lt.stats().failed == {**before, reason: before.get(reason, 0) + 1}

"""What a chat call leaves behind, and that the caller cannot tell."""

import asyncio
import gc
import json

import lightning_instrumentation as lt
import openai
import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.spans.packing import unpack_logprobs, unpack_token_ids
from lightning_instrumentation.wire.call import silence
from pydantic import BaseModel

KEY = "sk-very-secret-0123456789"
HELLO = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello there"}]
TOOL = {
    "type": "function",
    "function": {"name": "calc", "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}}},
}


def ask(text: str) -> list:
    return [{"role": "user", "content": text}]


@pytest.fixture
def client(model):
    return openai.OpenAI(base_url=model.base_url, api_key=KEY, max_retries=0)


@pytest.fixture
async def async_client(model):
    async with openai.AsyncOpenAI(base_url=model.base_url, api_key=KEY, max_retries=0) as client:
        yield client


def tokens(span, choice=0):
    return list(unpack_token_ids(span.attributes[semconv.response_token_ids(choice)]))


def logprobs(span, choice=0):
    return list(unpack_logprobs(span.attributes[semconv.response_logprobs(choice)]))


def test_a_call_is_a_client_span_with_request_answer_usage_and_exact_tokens(recording, client):
    with lt.rollout("task-1", rollout_id="r1", attempt_id="a1"):
        client.chat.completions.create(model="m", messages=HELLO, temperature=0.5, max_tokens=9, seed=3, stop="x")
    span = recording.span("chat")
    words = ["answer0 ", "to ", "hello ", "there "]
    assert span.kind == 3
    assert tokens(span) == recording.model.ids(words)
    assert logprobs(span) == [-0.25, -0.5, -0.75, -1.0]
    assert len(unpack_token_ids(span.attributes[semconv.PROMPT_TOKEN_IDS])) == span.attributes[semconv.INPUT_TOKENS]
    expected = {
        semconv.OPERATION: "chat",
        semconv.REQUEST_MODEL: "m",
        semconv.RESPONSE_MODEL: "m",
        semconv.REQUEST_TEMPERATURE: 0.5,
        semconv.REQUEST_MAX_TOKENS: 9,
        semconv.REQUEST_SEED: 3,
        semconv.REQUEST_STOP_SEQUENCES: ["x"],
        semconv.FINISH_REASONS: ["stop"],
        semconv.OUTPUT_TOKENS: 5,
        semconv.CHOICES: 1,
        semconv.SERVER_ADDRESS: "127.0.0.1",
        semconv.SERVER_PORT: recording.model.port,
        semconv.ROLLOUT_ID: "r1",
        semconv.ATTEMPT_ID: "a1",
        semconv.TASK_ID: "task-1",
        semconv.GROUP_ID: "task-1",
        semconv.ROLLOUT_MODE: "train",
    }
    assert {key: span.attributes.get(key) for key in expected} == expected
    assert json.loads(span.attributes[semconv.INPUT_MESSAGES]) == [
        {"role": "system", "parts": [{"type": "text", "content": "be brief"}]},
        {"role": "user", "parts": [{"type": "text", "content": "hello there"}]},
    ]
    assert json.loads(span.attributes[semconv.OUTPUT_MESSAGES]) == [
        {"role": "assistant", "parts": [{"type": "text", "content": "".join(words)}], "finish_reason": "stop"}
    ]
    assert semconv.STREAM_COMPLETE not in span.attributes


def test_a_client_made_before_the_first_line_of_ours_is_captured(receiver, model, tmp_path, client):
    completions = client.chat.completions  # holds a bound method of the client from now on
    lt.shutdown(0.0)
    lt.init(receiver.url, spool_dir=tmp_path)
    completions.create(model="m", messages=HELLO)
    assert lt.flush()
    assert len(receiver.spans("chat")) == 1
    lt.shutdown()


class Parsed(BaseModel):
    x: int


def answers(client) -> list:
    """Every way to ask, as the caller sees it."""
    create = client.chat.completions.create
    raw = client.chat.completions.with_raw_response
    parsed = client.chat.completions.parse(model="m", messages=ask("json"), response_format=Parsed)
    with client.chat.completions.stream(model="m", messages=ask("json")) as helper:
        helped = helper.get_final_completion()
    with client.chat.completions.with_streaming_response.create(model="m", messages=HELLO) as unread:
        unread_json = json.loads(unread.read())
    raw_answer = raw.create(model="m", messages=HELLO)
    return [
        create(model="m", messages=HELLO).model_dump(),
        create(model="m", messages=HELLO, n=2).model_dump(),
        create(model="m", messages=HELLO, tools=[TOOL]).model_dump(),
        create(model="m", messages=HELLO, logprobs=True).model_dump(),
        create(model="m", messages=HELLO, extra_body={"return_token_ids": True}).model_dump(),
        [chunk.model_dump() for chunk in create(model="m", messages=HELLO, stream=True)],
        [chunk.model_dump() for chunk in create(model="m", messages=HELLO, n=2, stream=True)],
        [chunk.model_dump() for chunk in create(model="m", messages=HELLO, tools=[TOOL], stream=True)],
        [
            chunk.model_dump()
            for chunk in create(
                model="m", messages=HELLO, stream=True, stream_options={"include_usage": True}, logprobs=True
            )
        ],
        raw_answer.http_response.json(),
        raw_answer.parse().model_dump(),
        [chunk.model_dump() for chunk in raw.create(model="m", messages=HELLO, stream=True).parse()],
        parsed.model_dump(),
        parsed.choices[0].message.parsed,
        helped.model_dump(),
        unread_json,
    ]


def test_answers_are_the_same_with_and_without_us(recording, client):
    watched = answers(client)
    asked = [body for _, _, body in recording.model.requests]
    lt.shutdown()
    unwatched = answers_without_us(client)
    assert watched == unwatched
    assert sum("return_token_ids" in body for body in asked) > 10


def answers_without_us(client) -> list:
    with silence():
        return answers(client)


async def test_async_answers_are_the_same_and_captured(recording, async_client):
    async def ways() -> list:
        create = async_client.chat.completions.create
        raw = await async_client.chat.completions.with_raw_response.create(model="m", messages=HELLO)
        unread = async_client.chat.completions.with_streaming_response
        async with unread.create(model="m", messages=HELLO, stream=True) as response:
            lines = [line async for line in response.iter_lines()]
        return [
            lines,
            (await create(model="m", messages=HELLO)).model_dump(),
            [chunk.model_dump() async for chunk in await create(model="m", messages=HELLO, stream=True)],
            raw.parse().model_dump(),
            (await async_client.chat.completions.parse(model="m", messages=ask("json"), response_format=Parsed))
            .choices[0]
            .message.parsed,
        ]

    watched = await ways()
    with silence():
        unwatched = await ways()
    assert watched == unwatched
    spans = recording.spans("chat")
    assert len(spans) == 5
    raw, unread, plain, streamed, _ = spans
    assert tokens(raw) == tokens(plain) == tokens(streamed) == tokens(unread)
    assert semconv.RESPONSE_ID in unread.attributes


def test_choices_keep_their_own_tokens(recording, client):
    client.chat.completions.create(model="m", messages=HELLO, n=2)
    list(client.chat.completions.create(model="m", messages=HELLO, n=2, stream=True))
    for span in recording.spans("chat"):
        assert span.attributes[semconv.CHOICES] == 2
        for choice in (0, 1):
            assert tokens(span, choice)[0] == sum(f"answer{choice} ".encode())
            assert logprobs(span, choice) == [-0.25, -0.5, -0.75, -1.0]


def test_a_streamed_tool_call_is_put_together(recording, client):
    list(client.chat.completions.create(model="m", messages=HELLO, tools=[TOOL], stream=True))
    span = recording.span("chat")
    assert span.attributes[semconv.STREAM_COMPLETE] is True
    assert json.loads(span.attributes[semconv.TOOL_DEFINITIONS]) == [TOOL]
    assert json.loads(span.attributes[semconv.OUTPUT_MESSAGES]) == [
        {
            "role": "assistant",
            "parts": [{"type": "tool_call", "id": "call_1", "name": "calc", "arguments": {"expression": "2+3"}}],
            "finish_reason": "tool_calls",
        }
    ]


@pytest.mark.long
def test_a_stream_keeps_its_type_and_one_that_is_forgotten_ends_its_span_as_incomplete(recording, client):
    stream = client.chat.completions.create(model="m", messages=HELLO, stream=True)
    assert type(stream) is openai.Stream
    next(iter(stream))
    assert recording.spans("chat") == []
    del stream
    gc.collect()
    span = recording.span("chat")
    assert span.attributes[semconv.STREAM_COMPLETE] is False


def test_a_stream_that_is_closed_early_ends_its_span_at_once(recording, client):
    with client.chat.completions.create(model="m", messages=HELLO, stream=True) as stream:
        next(iter(stream))
    assert recording.span("chat").attributes[semconv.STREAM_COMPLETE] is False


def test_a_stream_left_after_its_last_token_is_complete(recording, client):
    with client.chat.completions.create(model="m", messages=HELLO, stream=True) as stream:
        for chunk in stream:
            if chunk.choices[0].finish_reason:
                break
    assert recording.span("chat").attributes[semconv.STREAM_COMPLETE] is True


async def test_an_async_stream_left_early_is_incomplete(recording, async_client):
    async with await async_client.chat.completions.create(model="m", messages=HELLO, stream=True) as stream:
        async for _ in stream:
            break
    assert recording.span("chat").attributes[semconv.STREAM_COMPLETE] is False


def test_a_connection_cut_in_a_stream_is_an_error_for_the_caller_and_on_the_span(recording, client):
    stream = client.chat.completions.create(model="m", messages=ask("cut"), stream=True)
    with pytest.raises(openai.APIConnectionError):
        list(stream)
    span = recording.span("chat")
    assert span.error is not None
    assert span.attributes[semconv.STREAM_COMPLETE] is False


def test_an_error_status_is_raised_unchanged_and_recorded_without_the_key(recording, client):
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="m", messages=ask("status 400"))
    span = recording.span("chat")
    assert span.attributes[semconv.ERROR_TYPE] == "openai.BadRequestError"
    assert span.error is not None
    assert "400" in span.error


def test_no_span_holds_the_key(recording, client):
    client.chat.completions.create(model="m", messages=HELLO, extra_headers={"x-token": KEY})
    list(client.chat.completions.create(model="m", messages=HELLO, stream=True))
    with pytest.raises(openai.AuthenticationError, match=KEY):
        client.chat.completions.create(model="m", messages=ask("status 401"))
    spans = recording.spans()
    assert len(spans) == 3
    assert KEY not in repr(spans)
    assert "Bearer [secret]" in repr(spans)


def test_a_word_in_place_of_a_key_is_not_cut_out_of_errors(recording, model):
    client = openai.OpenAI(base_url=model.base_url, api_key="code", max_retries=0)
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="m", messages=ask("status 400"))
    assert "Error code: 400" in recording.span("chat").error


def test_retries_are_one_call(recording, model):
    client = openai.OpenAI(base_url=model.base_url, api_key=KEY, max_retries=1)
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="m", messages=ask("status 500"))
    assert len(model.requests) == 2
    recording.span("chat")


def test_an_answer_that_cannot_be_parsed_was_sampled_all_the_same(recording, client):
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model="m", messages=ask("cut short"), response_format=Parsed)
    span = recording.span("chat")
    assert span.error is not None
    assert len(tokens(span)) == 4
    assert span.attributes[semconv.FINISH_REASONS] == ["length"]


class TestHosts:
    def sent(self, model):
        _, headers, body = model.requests[-1]
        return headers, body

    def test_a_stranger_gets_what_it_would_get_without_us(self, receiver, model, client, tmp_path):
        lt.shutdown(0.0)
        lt.init(receiver.url, spool_dir=tmp_path)
        with lt.rollout("t"):
            client.chat.completions.create(model="m", messages=HELLO)
        headers, body = self.sent(model)
        assert "traceparent" not in headers
        assert "baggage" not in headers
        assert set(body) == {"model", "messages"}
        lt.shutdown()
        assert [span.name for span in receiver.spans("chat")] == ["chat m"]

    def test_the_endpoint_gets_trace_context_and_is_not_asked_for_ids(self, model, client, tmp_path):
        lt.shutdown(0.0)
        lt.init(f"http://localhost:{model.port}", spool_dir=tmp_path)
        with (
            lt.rollout("task é, 1", rollout_id="r", attempt_id="a", group_id="g=1", mode="evaluate") as rollout,
        ):
            lt.agent("sölver, one")(lambda: client.chat.completions.create(model="m", messages=HELLO))()
        headers, body = self.sent(model)
        lt.shutdown(0.0)
        assert set(body) == {"model", "messages"}
        assert headers["traceparent"].startswith(f"00-{rollout.trace_id}-")
        assert headers["traceparent"].endswith("-01")
        members = dict(member.split("=") for member in headers["baggage"].split(","))
        assert (len(members.pop(semconv.SEQUENCE)), int(members.pop(semconv.SEQUENCE_STARTED))) == (16, 3)
        assert members == {
            "lightning.rollout.id": "r",
            "lightning.attempt.id": "a",
            "lightning.task.id": "task%20%C3%A9%2C%201",
            "lightning.group.id": "g%3D1",
            "lightning.rollout.mode": "evaluate",
            "gen_ai.agent.name": "s%C3%B6lver%2C%20one",
        }

    def test_a_trusted_host_is_asked_for_ids_and_logprobs(self, recording, client):
        client.chat.completions.create(model="m", messages=HELLO)
        headers, body = self.sent(recording.model)
        span = recording.span("chat")
        assert headers["traceparent"] == f"00-{span.trace_id}-{span.span_id}-01"
        assert body["return_token_ids"] is True
        assert body["logprobs"] is True

    def test_what_the_user_set_is_never_overwritten(self, recording, client):
        mine = {"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-00", "Baggage": "mine=1"}
        client.chat.completions.create(
            model="m", messages=HELLO, logprobs=False, extra_body={"return_token_ids": False}, extra_headers=mine
        )
        headers, body = self.sent(recording.model)
        assert body["logprobs"] is False
        assert body["return_token_ids"] is False
        assert headers["traceparent"] == mine["traceparent"]
        assert headers["baggage"] == "mine=1"
        assert semconv.response_token_ids(0) not in recording.span("chat").attributes

    def test_that_a_trusted_host_gave_no_ids_is_on_the_span_and_of_others_nothing(
        self, recording, receiver, model, client, tmp_path
    ):
        for more in ({"return_token_ids": False}, {}):
            client.chat.completions.create(model="m", messages=HELLO, extra_body=more)
        without, exact = [span.attributes.get(semconv.NO_TOKEN_IDS) for span in recording.spans("chat m")]
        assert (without, exact) == (True, None)
        lt.shutdown()
        lt.init(receiver.url, spool_dir=tmp_path)  # and names no host
        client.chat.completions.create(model="m", messages=HELLO)
        lt.shutdown()
        assert semconv.NO_TOKEN_IDS not in receiver.spans("chat")[-1].attributes


def test_a_failure_inside_us_never_reaches_the_caller_and_is_counted(recording, client, monkeypatch):
    from lightning_instrumentation.wire import chat, request, sse

    def broken(*args, **kwargs):
        raise RuntimeError("bug")

    monkeypatch.setattr(request, "attributes", broken)
    assert client.chat.completions.create(model="m", messages=HELLO).choices[0].message.content
    monkeypatch.undo()
    monkeypatch.setattr(chat.ChatAnswer, "add", broken)
    assert client.chat.completions.create(model="m", messages=HELLO).choices[0].message.content
    assert len(list(client.chat.completions.create(model="m", messages=HELLO, stream=True))) > 2
    monkeypatch.setattr(sse, "with_data", broken)
    assert len(list(client.chat.completions.create(model="m", messages=HELLO, stream=True))) > 2
    failed = lt.stats().failed
    assert failed["chat-request"] >= 1
    assert failed["chat-response"] >= 1
    assert failed["stream-chunk"] >= 1


def test_content_is_left_out_where_the_user_says_so(receiver, model, client, tmp_path):
    lt.shutdown(0.0)
    lt.init(receiver.url, spool_dir=tmp_path, capture_content=False, trusted_hosts=[model.url])
    with lt.rollout("t", input={"question": "hello there"}):
        client.chat.completions.create(model="m", messages=HELLO, tools=[TOOL])
    lt.shutdown()
    assert "hello there" not in repr(receiver.spans())
    assert "expression" not in repr(receiver.spans())


async def test_forty_rollouts_at_once_in_one_process_stay_apart(recording, async_client):
    async def attempt(number: int) -> None:
        async with lt.rollout(f"t{number}", rollout_id=f"r{number}"):

            @lt.agent(f"agent{number}")
            async def speak() -> None:
                for turn in range(2):
                    await async_client.chat.completions.create(model="m", messages=ask(f"rollout {number} {turn}"))

            await speak()
            lt.reward(number)

    await async_client.chat.completions.create(model="m", messages=ask("before"))
    await asyncio.gather(*(attempt(number) for number in range(40)))
    await async_client.chat.completions.create(model="m", messages=ask("after"))
    chats = recording.spans("chat")
    assert len(chats) == 82
    for span in chats:
        said = json.loads(span.attributes[semconv.INPUT_MESSAGES])[0]["parts"][0]["content"].split()
        if said[0] == "rollout":
            assert span.attributes[semconv.ROLLOUT_ID] == f"r{said[1]}"
            assert span.attributes[semconv.AGENT_NAME] == f"agent{said[1]}"
        else:
            assert semconv.ROLLOUT_ID not in span.attributes
    for reward in recording.spans("evaluate"):
        assert f"r{int(reward.events[0][1][semconv.EVALUATION_SCORE])}" == reward.attributes[semconv.ROLLOUT_ID]
    assert len({span.trace_id for span in recording.spans("rollout")}) == 40


def test_the_users_options_are_not_changed(recording, client):
    headers, body = {"x-mine": "1"}, {"foo": 1}
    client.chat.completions.create(model="m", messages=HELLO, extra_headers=headers, extra_body=body)
    assert headers == {"x-mine": "1"}
    assert body == {"foo": 1}

"""``/v1/responses`` through chat completions: OpenAI's own client, exact records, clear refusals."""

import asyncio
from typing import Any

import openai
import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.spans.packing import unpack_token_ids

from lightning_trainer.errors import StoreError
from lightning_trainer.gateway.errors import RefusalError
from lightning_trainer.gateway.protocols.responses_request import chat_body

_TOOL: Any = {
    "type": "function",
    "name": "calculator",
    "description": "computes",
    "parameters": {"type": "object"},
    "strict": False,
}


@pytest.fixture
async def client(gateway):
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


async def test_a_response(gateway, client) -> None:
    response = await client.responses.create(
        model="sql", input="Is it open?", instructions="Be brief.", max_output_tokens=9, temperature=0.5
    )
    assert (response.output_text, response.status, response.model) == ("The café is open.", "completed", "sql")
    assert (response.usage.input_tokens, response.usage.output_tokens) == (3, 5)
    sent = gateway.engine.requests[0]
    assert sent["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Is it open?"},
    ]
    assert (sent["max_completion_tokens"], sent["temperature"]) == (9, 0.5)
    span = await gateway.record()
    assert unpack_token_ids(span.attributes[semconv.response_token_ids(0)]) == tuple(gateway.engine.tokens(0))
    assert span.attributes[semconv.RESPONSE_ID] == response.id == "resp_1"


async def test_a_streamed_response_ends_as_the_whole_one_does(gateway, client) -> None:
    kinds, text = [], ""
    async with client.responses.stream(model="sql", input="Is it open?") as stream:
        async for event in stream:
            kinds.append(event.type)
            text += event.delta if event.type == "response.output_text.delta" else ""
        final = await stream.get_final_response()
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert kinds.count("response.output_text.delta") == 5
    assert text == final.output_text == "The café is open."
    assert (final.usage.input_tokens, final.usage.output_tokens) == (3, 5)
    span = await gateway.record()
    assert (span.attributes[semconv.STREAM_COMPLETE], span.attributes[semconv.RESPONSE_ID]) == (True, final.id)


@pytest.mark.parametrize("streamed", [False, True])
async def test_tools_are_called_and_answered(gateway, client, streamed: bool) -> None:
    gateway.engine.tool_call = True
    asked = {
        "model": "sql",
        "input": "6*7?",
        "tools": [_TOOL],
        "tool_choice": {"type": "function", "name": "calculator"},
    }
    if streamed:
        async with client.responses.stream(**asked) as stream:
            events = [event async for event in stream]
            response = await stream.get_final_response()
        (done,) = [event for event in events if event.type == "response.function_call_arguments.done"]
        assert done.arguments == '{"expression": "6*7"}'
    else:
        response = await client.responses.create(**asked)
    (call,) = response.output
    assert (call.type, call.name, call.arguments) == ("function_call", "calculator", '{"expression": "6*7"}')
    sent = gateway.engine.requests[0]
    function = {name: value for name, value in _TOOL.items() if name != "type"}
    assert sent["tools"] == [{"type": "function", "function": function}]
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "calculator"}}

    gateway.engine.tool_call = False
    await client.responses.create(
        model="sql",
        input=[
            {"role": "user", "content": "6*7?"},
            *[item.to_dict() for item in response.output],
            {"type": "function_call_output", "call_id": call.call_id, "output": "42"},
        ],
    )
    assert gateway.engine.requests[1]["messages"] == [
        {"role": "user", "content": "6*7?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "calculator", "arguments": '{"expression": "6*7"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "42"},
    ]


def test_the_items_of_a_turn_become_one_message_again() -> None:
    turn = [
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I compute."}]},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "g", "arguments": "{}"},
    ]
    messages = chat_body({"input": [*turn, {"role": "developer", "content": "Go on."}, turn[1], turn[1]]})["messages"]
    assert [message["role"] for message in messages] == ["assistant", "system", "assistant", "assistant"]
    assert (messages[0]["reasoning"], messages[0]["content"]) == ("Hm.", "I compute.")
    assert [call["id"] for call in messages[0]["tool_calls"]] == ["a", "b"]


async def test_a_late_developer_message_is_the_users_where_the_template_wants_it_first(gateway, client) -> None:
    # Before: 400, of instructions with a developer message after them as well
    def refuse(body: dict[str, Any]) -> str | None:
        late = any(message["role"] == "system" for message in body["messages"][1:])
        return "a system message after the first" if late else None

    gateway.engine.refuse = refuse
    said: Any = [{"role": "developer", "content": "Speak French."}, {"role": "user", "content": "Is it open?"}]
    response = await client.responses.create(model="sql", instructions="Be brief.", input=said)
    assert response.output_text == "The café is open."
    assert gateway.engine.requests[1]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Speak French."},
        {"role": "user", "content": "Is it open?"},
    ]


def test_formats_images_and_unknown_fields_are_passed_on() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
    chat = chat_body(
        {
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, image]}],
            "text": {"format": {"type": "json_schema", "name": "thing", "schema": {"type": "object"}, "strict": True}},
            "reasoning": {"effort": "low"},
            "top_k": 5,
            "store": False,
            "prompt_cache_options": {"mode": "explicit"},
            "metadata": {"a": "b"},
        }
    )
    assert chat.pop("messages")[0]["content"][1] == {"type": "image_url", "image_url": {"url": image["image_url"]}}
    assert chat == {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "thing", "schema": {"type": "object"}, "strict": True},
        },
        "reasoning_effort": "low",
        "top_k": 5,
    }


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id is not supported here: this gateway keeps no"),
        ({"conversation": "c"}, "conversation is not supported here"),
        (
            {"context_management": [{"type": "compaction"}]},
            "context_management is not supported here: contexts",
        ),
        ({"moderation": {"model": "m"}}, "moderation is not supported here"),
        ({"background": True}, "background is not supported here"),
        ({"store": True}, "store = true is not supported here"),
        ({"n": 2}, "n = 2: a response has one answer"),
        ({"include": ["file_search_call.results"]}, "include = 'file_search_call.results' is not supported"),
        ({"tools": [{"type": "web_search"}]}, "a tool of type 'web_search' is not supported here"),
        ({"tools": 5}, "a field of the body has a shape that cannot be read"),
        (
            {"input": [{"type": "computer_call", "id": "x"}]},
            "an input item of type 'computer_call' is not supported here",
        ),
        (
            {"input": [{"type": "item_reference", "id": "x"}]},
            "an input item of type 'item_reference' is not supported here: this gateway keeps no answers; have the "
            "client send the items themselves (AI SDK: providerOptions.openai.store = false, or provider.chat(model))",
        ),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "a content part of type 'input_file'"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "a file_id names a file"),
        ({"input": 5}, "input is a int"),
    ],
)
async def test_what_cannot_be_translated_is_refused_by_name(gateway, fields, sentence: str) -> None:
    answer = await gateway.http.post("/v1/responses", json={"model": "sql", "input": "?", **fields})
    assert (answer.status_code, sentence in answer.json()["error"]["message"]) == (400, True), answer.text
    assert gateway.engine.requests == gateway.sink.spans == []


def test_a_refusal_names_its_field() -> None:
    with pytest.raises(RefusalError) as caught:
        chat_body({"input": "?", "store": True})
    assert caught.value.body["error"]["param"] == "store"


@pytest.mark.parametrize("tools", [None, []])
def test_a_choice_among_no_tools_is_left_out(tools) -> None:
    # Before: 400, "When using `tool_choice`, `tools` must be set"; Codex sends it with every call
    assert "tool_choice" not in chat_body({"input": "?", "tools": tools, "tool_choice": "auto"})
    assert chat_body({"input": "?", "tools": [_TOOL], "tool_choice": "auto"})["tool_choice"] == "auto"
    assert chat_body({"input": "?", "tools": tools, "tool_choice": "required"})["tool_choice"] == "required"


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_response_that_was_cut_short_says_so(gateway, client, streamed: bool) -> None:
    gateway.engine.finish_reason = "length"
    if streamed:
        stream = await client.responses.create(model="sql", input="?", stream=True)
        response = [event async for event in stream][-1].response
    else:
        response = await client.responses.create(model="sql", input="?")
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_response_that_new_weights_cut_off_is_an_error(gateway, client, streamed: bool) -> None:
    """Before: it was said to be completed."""

    async def answered() -> None:
        if not streamed:
            await client.responses.create(model="sql", input="?")
        async for _ in await client.responses.create(model="sql", input="?", stream=True):
            pass

    gateway.engine.finish_reason = "abort"
    with pytest.raises(openai.APIError, match="was cut off"):
        await answered()
    span = await gateway.record()
    assert span.attributes[semconv.STREAM_COMPLETE] is False


async def test_errors_reach_the_client_as_its_own(gateway, client) -> None:
    with pytest.raises(openai.NotFoundError, match="known models: sql"):
        await client.responses.create(model="gpt-5", input="?")
    gateway.engine.cut_after = 2
    stream = await client.responses.create(model="sql", input="?", stream=True)
    with pytest.raises(openai.APIError, match="the engine went away"):
        async for _ in stream:
            pass
    gateway.engine.cut_after = None
    gateway.sink.error = StoreError("the disk is full")
    with pytest.raises(openai.InternalServerError, match="the disk is full"):
        await client.responses.create(model="sql", input="?")


async def test_the_first_piece_goes_out_before_the_second_is_sampled(gateway, client) -> None:
    second = asyncio.Event()

    async def pace(position: int) -> None:
        if position == 1:
            await second.wait()

    gateway.engine.pace = pace
    stream = await client.responses.create(model="sql", input="?", stream=True)
    async with asyncio.timeout(10):
        async for event in stream:
            if event.type == "response.output_text.delta":
                break
    await stream.close()
    await asyncio.wait_for(gateway.engine.cancelled.wait(), 10)
    assert (await gateway.record()).attributes[semconv.STREAM_COMPLETE] is False

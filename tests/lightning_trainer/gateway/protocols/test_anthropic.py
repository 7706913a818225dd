"""``/v1/messages`` through chat completions: Anthropic's own client, exact records, clear refusals."""

import asyncio
import json
from typing import Any

import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.spans.packing import unpack_token_ids

from lightning_trainer.gateway.protocols.anthropic_request import chat_body
from lightning_trainer.types import SpanStatus

_ASKED: Any = {"model": "sql", "max_tokens": 9, "messages": [{"role": "user", "content": "Is it open?"}]}
_TOOLS: Any = [{"name": "calculator", "description": "computes", "input_schema": {"type": "object"}}]


@pytest.fixture
async def client(gateway):
    import anthropic

    async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key="none", max_retries=0) as opened:
        yield opened


async def test_a_message(gateway, client) -> None:
    message = await client.messages.create(**_ASKED, system="Be brief.", stop_sequences=["\n"])
    (block,) = message.content
    assert (block.text, message.stop_reason, message.model) == ("The café is open.", "end_turn", "sql")
    assert (message.usage.input_tokens, message.usage.output_tokens) == (3, 5)
    sent = gateway.engine.requests[0]
    assert sent["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Is it open?"},
    ]
    assert (sent["max_completion_tokens"], sent["stop"]) == (9, ["\n"])
    span = await gateway.record()
    assert unpack_token_ids(span.attributes[semconv.response_token_ids(0)]) == tuple(gateway.engine.tokens(0))
    assert span.attributes[semconv.RESPONSE_ID] == message.id == "msg_1"


async def test_a_streamed_message_ends_as_the_whole_one_does(gateway, client) -> None:
    async with client.messages.stream(**_ASKED) as stream:
        pieces = [text async for text in stream.text_stream]
        message = await stream.get_final_message()
    assert pieces == ["The", " café", " is", " open", "."]
    assert (message.content[0].text, message.stop_reason) == ("The café is open.", "end_turn")
    assert (message.usage.input_tokens, message.usage.output_tokens) == (3, 5)
    span = await gateway.record()
    assert (span.attributes[semconv.STREAM_COMPLETE], span.attributes[semconv.RESPONSE_ID]) == (True, message.id)


@pytest.mark.parametrize("streamed", [False, True])
async def test_tools_are_called_and_answered(gateway, client, streamed: bool) -> None:
    gateway.engine.tool_call = True
    asked: Any = {**_ASKED, "tools": _TOOLS, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    if streamed:
        async with client.messages.stream(**asked) as stream:
            message = await stream.get_final_message()
    else:
        message = await client.messages.create(**asked)
    (block,) = message.content
    assert (block.type, block.name, block.input) == ("tool_use", "calculator", {"expression": "6*7"})
    assert message.stop_reason == "tool_use"
    sent = gateway.engine.requests[0]
    function = {"name": "calculator", "description": "computes", "parameters": {"type": "object"}}
    assert sent["tools"] == [{"type": "function", "function": function}]
    assert (sent["tool_choice"], sent["parallel_tool_calls"]) == ("required", False)

    gateway.engine.tool_call = False
    result: Any = {"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": "42"}]}
    said: Any = {"type": "text", "text": "Well?"}
    turn: Any = {"role": "assistant", "content": [block.to_dict()]}
    await client.messages.create(**{**_ASKED, "messages": [turn, {"role": "user", "content": [result, said]}]})
    messages = gateway.engine.requests[1]["messages"]
    (call,) = messages[0]["tool_calls"]
    assert (call["id"], json.loads(call["function"]["arguments"])) == ("call_1", {"expression": "6*7"})
    assert messages[1:] == [
        {"role": "tool", "tool_call_id": "call_1", "content": "42"},
        {"role": "user", "content": "Well?"},
    ]


@pytest.mark.parametrize(
    ("content", "read"),
    [
        ("no such file", "Error: no such file"),
        ([{"type": "text", "text": "no such file"}], "Error: no such file"),
        ("Error: no such file", "Error: no such file"),
        ("ERROR 2: no such file", "ERROR 2: no such file"),
        ("<tool_use_error>no such file</tool_use_error>", "<tool_use_error>no such file</tool_use_error>"),
        (None, "Error"),
        (
            [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            [{"type": "text", "text": "Error: a"}, {"type": "text", "text": "b"}],
        ),
    ],
)
def test_a_tool_that_failed_is_said_to_have_failed(content: Any, read: Any) -> None:
    # Before: the model read its words as those of one that had succeeded
    result = {"type": "tool_result", "tool_use_id": "t", "content": content}

    def told(block: Any) -> Any:
        (message,) = chat_body({**_ASKED, "messages": [{"role": "user", "content": [block]}]})["messages"]
        return message["content"]

    assert told({**result, "is_error": True}) == read
    assert told({**result, "is_error": False}) == told(result)


def test_a_tool_that_failed_with_a_picture_is_said_to_have_failed() -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [picture], "is_error": True}
    (message,) = chat_body({**_ASKED, "messages": [{"role": "user", "content": [result]}]})["messages"]
    assert [part["type"] for part in message["content"]] == ["text", "image_url"]
    assert message["content"][0]["text"] == "Error"


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_tool_that_had_to_be_called_is_why_it_stopped(gateway, client, streamed: bool) -> None:
    # Before: "end_turn", since chat completions end with "stop" where a certain tool was asked for
    gateway.engine.tool_call = True
    asked: Any = {**_ASKED, "tools": _TOOLS, "tool_choice": {"type": "tool", "name": "calculator"}}
    if streamed:
        async with client.messages.stream(**asked) as stream:
            message = await stream.get_final_message()
    else:
        message = await client.messages.create(**asked)
    assert (message.content[0].type, message.stop_reason) == ("tool_use", "tool_use")


@pytest.mark.parametrize("content", ["The answer is (", [{"type": "text", "text": "The answer is ("}]])
def test_an_answer_that_the_caller_begins_is_continued(content) -> None:
    # Before: the model began another answer after it
    begun = {"role": "assistant", "content": content}
    chat = chat_body({**_ASKED, "messages": [*_ASKED["messages"], begun]})
    assert chat["messages"][-1] == {"role": "assistant", "content": "The answer is ("}
    assert (chat["continue_final_message"], chat["add_generation_prompt"]) == (True, False)
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}
    for messages in (_ASKED["messages"], [*_ASKED["messages"], begun, *_ASKED["messages"]], [begun, call]):
        assert "continue_final_message" not in chat_body({**_ASKED, "messages": messages})


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("finish", "stop", "reason"), [("length", None, "max_tokens"), ("stop", "END", "stop_sequence")]
)
async def test_why_it_stopped_is_said(gateway, client, streamed, finish, stop, reason) -> None:
    gateway.engine.finish_reason, gateway.engine.stop_reason = finish, stop
    asked = {**_ASKED, "max_tokens": 5}  # as many as the engine samples
    if streamed:
        async with client.messages.stream(**asked) as stream:
            message = await stream.get_final_message()
    else:
        message = await client.messages.create(**asked)
    assert (message.stop_reason, message.stop_sequence) == (reason, stop)


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_that_new_weights_cut_off_is_an_error(gateway, client, streamed) -> None:
    """Before: it ended its turn, and half a sentence was taken as final."""
    import anthropic

    async def answered() -> None:
        if not streamed:
            await client.messages.create(**_ASKED)
        async with client.messages.stream(**_ASKED) as stream:
            await stream.get_final_message()

    gateway.engine.finish_reason = "abort"
    with pytest.raises(anthropic.APIStatusError, match="was cut off"):
        await answered()
    span = await gateway.record()
    assert (span.status, span.attributes[semconv.STREAM_COMPLETE]) == (SpanStatus.ERROR, False)


async def test_long_integers_in_the_input_of_a_tool_stay_exact(gateway, client) -> None:
    """Before: 100000000000000000001 became 1e+20, on the way out and on the way back."""
    gateway.engine.tool_call, gateway.engine.arguments = True, '{"wei": 100000000000000000001}'
    message = await client.messages.create(**_ASKED, tools=_TOOLS)
    (block,) = message.content
    assert block.input == {"wei": 10**20 + 1}
    results = [{"type": "tool_result", "tool_use_id": block.id, "content": "paid"}]
    called = {"type": "tool_use", "id": block.id, "name": block.name, "input": block.input}
    said = [{"role": "assistant", "content": [called]}, {"role": "user", "content": results}]
    await client.messages.create(**{**_ASKED, "messages": [*_ASKED["messages"], *said]}, tools=_TOOLS)
    sent = gateway.engine.requests[-1]["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == {"wei": 10**20 + 1}


def test_disabled_thinking_stays_disabled_next_to_an_effort() -> None:
    """Before: the effort turned it on."""
    asked = {**_ASKED, "thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}
    assert chat_body(asked)["reasoning_effort"] == "none"


def test_the_format_of_the_output_is_passed_on() -> None:
    chat = chat_body(
        {**_ASKED, "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}}}
    )
    assert chat["response_format"]["json_schema"] == {"name": "output", "schema": {"type": "object"}}
    assert chat["reasoning_effort"] == "low"


def test_thinking_formats_images_and_unknown_fields_are_passed_on() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    thought = [{"type": "thinking", "thinking": "Hm.", "signature": ""}, {"type": "text", "text": "Yes."}]
    chat = chat_body(
        {
            "max_tokens": 5,
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "What?", "cache_control": {}}, image]},
                {"role": "assistant", "content": thought},
            ],
            "thinking": {"type": "disabled"},
            # As Anthropic's clients called it before they put it into `output_config`.
            "output_format": {"type": "json_schema", "schema": {"type": "object"}},
            "output_config": {"effort": None},
            "top_k": 5,
            "metadata": {"user_id": "u"},
        }
    )
    question, answer = chat.pop("messages")
    assert question["content"] == [
        {"type": "text", "text": "What?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
    ]
    assert answer == {"role": "assistant", "content": "Yes.", "reasoning": "Hm."}
    assert chat == {
        "max_completion_tokens": 5,
        "reasoning_effort": "none",
        "response_format": {"type": "json_schema", "json_schema": {"name": "output", "schema": {"type": "object"}}},
        "top_k": 5,
    }


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"max_tokens": None}, "max_tokens is None; a number is required"),
        ({"container": "c"}, "container is not supported here"),
        ({"thread": {"type": "create"}}, "thread is not supported here: this gateway keeps no conversations"),
        ({"compaction": {"instructions": "Be brief."}}, "compaction is not supported here"),
        ({"output_config": {"format": {"type": "xml"}}}, "an output format of type 'xml' is not supported here"),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            "the tool 'web_search' (type 'web_search_20250305') is not supported here: it runs at Anthropic",
        ),
        ({"tools": [{"type": "computer_20250124", "name": "computer"}]}, "'computer_20250124' has no schema"),
        ({"tools": [{"type": "browser_toolset_20260801"}]}, "'browser_toolset_20260801' has no schema"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]},
                    {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": ""}]},
                ],
                "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
            },
            "a field of the body has a shape that cannot be read",
        ),
        ({"context_management": {"edits": [{"type": "forget"}]}}, "the edit 'forget' is not known here"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "a content block of type 'document'"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "a message has the role 'tool'"),
        ({"messages": "hello"}, "messages is a str; send a list"),
        ({"tools": 5}, "a field of the body has a shape that cannot be read"),
    ],
)
async def test_what_cannot_be_translated_is_refused_in_anthropics_shape(gateway, fields, sentence: str) -> None:
    answer = await gateway.http.post("/v1/messages", json={**_ASKED, **fields})
    body = answer.json()
    assert (answer.status_code, body["type"], body["error"]["type"]) == (400, "error", "invalid_request_error")
    assert sentence in body["error"]["message"]
    assert gateway.engine.requests == gateway.sink.spans == []


async def test_errors_reach_the_client_as_its_own(gateway, client) -> None:
    import anthropic

    with pytest.raises(anthropic.NotFoundError, match="known models: sql"):
        await client.messages.create(**{**_ASKED, "model": "claude"})
    gateway.engine.error = (400, {"error": {"message": "maximum context length is 2048 tokens", "code": 400}})
    with pytest.raises(anthropic.BadRequestError, match="maximum context length is 2048"):
        await client.messages.create(**_ASKED)
    gateway.engine.error, gateway.engine.cut_after = None, 2
    with pytest.raises(anthropic.APIStatusError, match="the engine went away"):
        async with client.messages.stream(**_ASKED) as stream:
            await stream.get_final_message()
    span = await gateway.record()
    assert span.attributes[semconv.STREAM_COMPLETE] is False


async def test_a_caller_who_leaves_cancels_the_engines_work(gateway, client) -> None:
    held = asyncio.Event()

    async def pace(position: int) -> None:
        if position == 2:
            await held.wait()

    gateway.engine.pace = pace
    async with asyncio.timeout(10):
        async with client.messages.stream(**_ASKED) as stream:
            async for text in stream.text_stream:
                if text == " café":
                    break
        await gateway.engine.cancelled.wait()
    assert (await gateway.record()).attributes[semconv.STREAM_COMPLETE] is False


async def test_models_are_listed_as_its_own_clients_read_them(gateway, client) -> None:
    # Before: entries without display_name and created_at, which they promise
    import anthropic

    listed = [model async for model in client.models.list()]
    assert [(model.id, model.type, model.display_name) for model in listed] == [
        ("sql", "model", "sql"),
        ("sql@v3", "model", "sql@v3"),
    ]
    one = await client.models.retrieve("sql@v3")
    assert (one, one.created_at.utcoffset().total_seconds()) == (listed[1], 0)
    with pytest.raises(anthropic.NotFoundError, match="known models: sql, sql@v3"):
        await client.models.retrieve("sql@v9")

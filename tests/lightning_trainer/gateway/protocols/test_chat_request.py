"""What an engine would leave out of a chat completion without a word is refused, as OpenAI's own client prints it."""

from typing import Any

import openai
import pytest

_FUNCTION = {"name": "calculator", "parameters": {"type": "object"}}
_CALLED = {"role": "assistant", "content": None, "function_call": {"name": "calculator", "arguments": "{}"}}


@pytest.fixture
async def client(gateway):
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"functions": [_FUNCTION]}, "functions is not supported here: they were replaced by tools"),
        ({"web_search_options": {"search_context_size": "low"}}, "web_search_options is not supported here: nothing"),
        ({"modalities": ["text", "audio"]}, "modalities has 'audio': answers are text alone"),
        ({"audio": {"voice": "alloy", "format": "wav"}}, "audio is not supported here: answers are text alone"),
        ({"moderation": {"model": "m"}}, "moderation is not supported here: nothing is moderated here"),
        ({"tools": [{"type": "custom", "custom": {"name": "run"}}]}, "a tool of type 'custom' is served in Responses"),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
            "tool_choice of type 'allowed_tools' is not supported here: send only the tools that may be called",
        ),
        ({"messages": [_CALLED]}, "message 1 has function_call, which no model here sees: send tool_calls"),
        ({"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]}, "message 1 has audio, which no model here"),
    ],
)
async def test_what_the_engine_would_leave_out_is_refused_by_name(gateway, client, fields, sentence: str) -> None:
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "Is it open?"}], **fields}
    with pytest.raises(openai.BadRequestError) as raised:
        await client.chat.completions.create(model="sql", **asked)
    assert sentence in str(raised.value)
    assert gateway.engine.requests == gateway.sink.spans == []


async def test_hints_and_what_is_about_an_account_change_nothing(gateway, client) -> None:
    answer = await client.chat.completions.create(
        model="sql",
        messages=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Is it open?"}],
        modalities=["text"],
        prediction={"type": "content", "content": "It is."},
        verbosity="low",
        service_tier="flex",
        store=True,
        metadata={"a": "b"},
        max_completion_tokens=9,
        reasoning_effort="minimal",
    )
    assert answer.choices[0].message.content == "The café is open."
    (sent,) = gateway.engine.requests
    assert [message["role"] for message in sent["messages"]] == ["system", "user"]
    assert (sent["max_completion_tokens"], sent["reasoning_effort"]) == (9, "minimal")


async def test_a_later_developer_message_is_sent_as_the_users_where_the_template_wants_none(gateway, client) -> None:
    """Before: it was left to the template, which writes a role that the model never saw, or leaves the words out."""
    gateway.engine.refuse = lambda body: "system" if body["messages"][-1]["role"] == "system" else None
    asked: Any = [{"role": "user", "content": "Is it open?"}, {"role": "developer", "content": "Be brief."}]
    await client.chat.completions.create(model="sql", messages=asked)
    assert [[message["role"] for message in sent["messages"]] for sent in gateway.engine.requests] == [
        ["user", "system"],
        ["user", "user"],
    ]


@pytest.mark.parametrize("count", [2.0, "2"])
async def test_a_number_of_choices_that_is_none_is_refused(gateway, client, count) -> None:
    """Before: the engine read it as 2, and the later choices of a stream were recorded before their ends."""
    with pytest.raises(openai.BadRequestError, match=r"n = .*: send a whole number"):
        await client.chat.completions.create(model="sql", messages=[{"role": "user", "content": "?"}], n=count)
    assert gateway.engine.requests == []


async def test_long_integers_reach_the_engine_as_they_are(gateway, client) -> None:
    """Before: 2**256 - 1 became 1.157920892373162e+77."""
    schema = {"type": "object", "properties": {"wei": {"type": "integer", "maximum": 2**256 - 1}}}
    tools: Any = [{"type": "function", "function": {"name": "pay", "parameters": schema}}]
    await client.chat.completions.create(model="sql", messages=[{"role": "user", "content": "?"}], tools=tools)
    (sent,) = gateway.engine.requests
    assert sent["tools"][0]["function"]["parameters"] == schema


async def test_the_stream_helper_reads_every_event(gateway, client) -> None:
    asked: Any = {"model": "sql", "messages": [{"role": "user", "content": "Is it open?"}]}
    async with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
        kinds = {event.type async for event in stream}
        final = await stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == "The café is open."
    assert final.usage is not None
    assert final.usage.completion_tokens == 5
    assert len(gateway.sink.spans) == 1

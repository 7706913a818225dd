"""Ordinary clients work against the gateway as they do against any OpenAI endpoint."""

import asyncio
from typing import Any

import openai
import pytest
from langchain_openai import ChatOpenAI

_MESSAGES: list[Any] = [{"role": "user", "content": "Is it open?"}]
_TOOLS: list[Any] = [{"type": "function", "function": {"name": "calculator", "parameters": {"type": "object"}}}]


def _options(gateway) -> dict[str, Any]:
    return {"base_url": f"{gateway.url}/v1", "api_key": "none", "max_retries": 0}


async def test_openai_sync(gateway) -> None:
    def converse() -> tuple:
        with openai.OpenAI(**_options(gateway)) as client:
            whole = client.chat.completions.create(model="sql", messages=_MESSAGES, n=2)
            stream = client.chat.completions.create(model="sql", messages=_MESSAGES, stream=True)
            pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
            return [choice.message.content for choice in whole.choices], "".join(pieces), client.models.list().data

    contents, streamed, models = await asyncio.to_thread(converse)
    assert contents == ["The café is open."] * 2
    assert streamed == "The café is open."
    assert [model.id for model in models] == ["sql", "sql@v3"]
    assert len(gateway.sink.spans) == 2


async def test_openai_async_with_tools(gateway) -> None:
    gateway.engine.tool_call = True
    async with openai.AsyncOpenAI(**_options(gateway)) as client:
        whole = await client.chat.completions.create(model="sql", messages=_MESSAGES, tools=_TOOLS)
        stream = await client.chat.completions.create(
            model="sql", messages=_MESSAGES, tools=_TOOLS, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    (call,) = list(whole.choices[0].message.tool_calls or ())
    assert call.type == "function"
    assert (call.function.name, call.function.arguments) == ("calculator", '{"expression": "6*7"}')
    (streamed,) = [c for chunk in chunks for choice in chunk.choices for c in choice.delta.tool_calls or ()]
    assert streamed.function is not None
    assert streamed.function.arguments == '{"expression": "6*7"}'
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5


async def test_openai_reads_our_refusals_as_its_own_errors(gateway) -> None:
    async with openai.AsyncOpenAI(**_options(gateway)) as client:
        with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-5' here; known models: sql"):
            await client.chat.completions.create(model="gpt-5", messages=_MESSAGES)
        gateway.engine.cut_after = 2
        stream = await client.chat.completions.create(model="sql", messages=_MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="the engine went away"):
            async for _ in stream:
                pass


async def test_langchain(gateway) -> None:
    model = ChatOpenAI(model="sql", **_options(gateway))
    assert (await model.ainvoke("Is it open?")).content == "The café is open."
    assert (await asyncio.to_thread(model.invoke, "Is it open?")).content == "The café is open."
    assert "".join([str(chunk.content) async for chunk in model.astream("Is it open?")]) == "The café is open."
    gateway.engine.tool_call = True
    answer = await model.bind_tools(_TOOLS).ainvoke("6*7?")
    assert [(call["name"], call["args"]) for call in answer.tool_calls] == [("calculator", {"expression": "6*7"})]
    assert len(gateway.sink.spans) == 4

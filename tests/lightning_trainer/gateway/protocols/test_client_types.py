"""Answers and events have every field that the clients' own types require, for each kind of output."""

import json
from collections.abc import AsyncIterator
from typing import Any, get_args

import openai.types.responses
import pytest
from pydantic import BaseModel

_FUNCTION = {"type": "function", "name": "calculator", "parameters": {"type": "object"}}
_CUSTOM = {"type": "custom", "name": "calculator"}
_KINDS = ("text", "reasoning", "function", "custom", "cut short")


def _events_of(union: Any) -> dict[str, type[BaseModel]]:
    """Return the classes of a union of events by the type that each names."""
    members = get_args(get_args(union)[0])
    return {name: member for member in members for name in get_args(member.model_fields["type"].annotation)}


_OF_RESPONSES = _events_of(openai.types.responses.ResponseStreamEvent)


@pytest.fixture(params=_KINDS)
def kind(gateway, request) -> str:
    engine = gateway.engine
    engine.reasoning = "Hm." if request.param == "reasoning" else None
    engine.tool_call = request.param in ("function", "custom")
    engine.finish_reason = "length" if request.param == "cut short" else "stop"
    return request.param


def _events(stream: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in stream.splitlines() if line.startswith("data: ")]


async def test_of_responses(gateway, kind: str) -> None:
    # Before: without usage.input_tokens_details.cache_write_tokens
    tools = [_CUSTOM if kind == "custom" else _FUNCTION]
    asked = {"model": "sql", "input": "?", "tools": tools, "include": ["reasoning.encrypted_content"]}
    answer = await gateway.http.post("/v1/responses", json=asked)
    openai.types.responses.Response.model_validate(answer.json())
    stream = await gateway.http.post("/v1/responses", json={**asked, "stream": True})
    events = _events(stream.text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        _OF_RESPONSES[event["type"]].model_validate(event)


async def test_of_messages(gateway, kind: str) -> None:
    from anthropic import types  # takes a second, so not whenever tests are collected

    known = _events_of(types.RawMessageStreamEvent)
    tools = [{"name": "calculator", "input_schema": {"type": "object"}}]
    asked = {"model": "sql", "max_tokens": 9, "messages": [{"role": "user", "content": "?"}], "tools": tools}
    answer = await gateway.http.post("/v1/messages", json=asked)
    types.Message.model_validate(answer.json())
    stream = await gateway.http.post("/v1/messages", json={**asked, "stream": True})
    events = [event for event in _events(stream.text) if event["type"] != "ping"]
    for event in events:
        known[event["type"]].model_validate(event)


async def test_of_an_error_in_the_middle_of_a_stream(gateway) -> None:
    # Before: with the engine's number as the code, which is a word
    error = {"message": "out of memory", "type": "InternalServerError", "param": None, "code": 500}

    async def stream(body: Any, base: Any) -> AsyncIterator[str]:
        yield f"data: {json.dumps({'error': error})}\n\n"
        yield "data: [DONE]\n\n"

    gateway.engine._stream = stream
    answer = await gateway.http.post("/v1/responses", json={"model": "sql", "input": "?", "stream": True})
    (event,) = _events(answer.text)
    _OF_RESPONSES[event["type"]].model_validate(event)
    assert (event["message"], event["code"]) == ("out of memory", "InternalServerError")


async def test_usage_of_messages_is_whole_at_the_beginning_and_at_the_end(gateway) -> None:
    # Before: at the end without the prompt's tokens, where LangChain reads them, and never with those of a cache
    asked = {"model": "sql", "max_tokens": 9, "messages": [{"role": "user", "content": "?"}]}
    cache = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    answer = await gateway.http.post("/v1/messages", json=asked)
    whole = {"input_tokens": 3, "output_tokens": 5, **cache}
    assert answer.json()["usage"] == whole
    stream = await gateway.http.post("/v1/messages", json={**asked, "stream": True})
    events = {event["type"]: event for event in _events(stream.text)}
    assert events["message_start"]["message"]["usage"] == {**whole, "output_tokens": 0}
    assert events["message_delta"]["usage"] == whole

"""Answers and events have every field that the clients' own types require, for each kind of output."""

import json
from typing import Any, get_args

import anthropic.types
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
_OF_MESSAGES = _events_of(anthropic.types.RawMessageStreamEvent)


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
    tools = [{"name": "calculator", "input_schema": {"type": "object"}}]
    asked = {"model": "sql", "max_tokens": 9, "messages": [{"role": "user", "content": "?"}], "tools": tools}
    answer = await gateway.http.post("/v1/messages", json=asked)
    anthropic.types.Message.model_validate(answer.json())
    stream = await gateway.http.post("/v1/messages", json={**asked, "stream": True})
    events = [event for event in _events(stream.text) if event["type"] != "ping"]
    for event in events:
        _OF_MESSAGES[event["type"]].model_validate(event)

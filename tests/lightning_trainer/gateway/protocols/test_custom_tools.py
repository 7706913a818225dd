"""Free-form tools of Responses: a function of one text for the model, ``custom_tool_call`` items for the caller."""

import json
from typing import Any

import openai
import pytest

from lightning_trainer.gateway.errors import RefusalError
from lightning_trainer.gateway.protocols.responses_request import chat_body

_RUN: Any = {"type": "custom", "name": "run", "description": "Runs Python.", "format": {"type": "text"}}
_ADD: Any = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}
_ASKED: Any = {"model": "sql", "input": "6*7?", "tools": [_RUN, _ADD]}


@pytest.fixture
async def client(gateway):
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


def _calls(gateway, monkeypatch, *calls: tuple[str, str]) -> None:
    """Have the engine call tools: names and arguments, as the model wrote them."""
    made = [
        {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(calls)
    ]
    gateway.engine.tool_call = True
    monkeypatch.setattr(gateway.engine, "_call", lambda: made[0])
    whole = gateway.engine._whole

    def with_all(body: Any, base: Any) -> Any:
        answer = whole(body, base)
        answer["choices"][0]["message"]["tool_calls"] = made
        return answer

    monkeypatch.setattr(gateway.engine, "_whole", with_all)


async def test_the_model_gets_a_function_of_one_text(gateway, client) -> None:
    # Before: 400, a tool of type 'custom' is not supported here
    response = await client.responses.create(**_ASKED, tool_choice={"type": "custom", "name": "run"})
    sent = gateway.engine.requests[0]
    function = sent["tools"][0]["function"]
    assert (function["name"], function["description"]) == ("run", "Runs Python.")
    assert function["parameters"]["properties"]["input"]["type"] == "string"
    assert function["parameters"]["required"] == ["input"]
    assert sent["tools"][1]["function"]["name"] == "add"
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "run"}}
    assert response.tools[0].type == "custom"


async def test_the_caller_gets_its_input_and_the_model_its_arguments_back(gateway, client, monkeypatch) -> None:
    code = 'print("é",\n6*7)'
    _calls(gateway, monkeypatch, ("run", json.dumps({"input": code})), ("add", '{"a": 1}'))
    response = await client.responses.create(**_ASKED)
    run, add = response.output
    assert (run.type, run.name, run.input, run.call_id) == ("custom_tool_call", "run", code, "call_0")
    assert (add.type, add.arguments) == ("function_call", '{"a": 1}')
    assert run.id.startswith("ctc_")
    results = [
        {"type": "custom_tool_call_output", "call_id": run.call_id, "output": "42"},
        {"type": "function_call_output", "call_id": add.call_id, "output": "1"},
    ]
    await client.responses.create(**{**_ASKED, "input": [*[item.to_dict() for item in response.output], *results]})
    turn, *told = gateway.engine.requests[1]["messages"]
    arguments = [json.loads(call["function"]["arguments"]) for call in turn["tool_calls"]]
    assert arguments == [{"input": code}, {"a": 1}]
    assert [(message["tool_call_id"], message["content"]) for message in told] == [("call_0", "42"), ("call_1", "1")]


async def test_a_stream_has_the_events_of_a_custom_tool(gateway, client, monkeypatch) -> None:
    _calls(gateway, monkeypatch, ("run", '{"input": "print(42)"}'))
    events = [event async for event in await client.responses.create(**_ASKED, stream=True)]
    of_call = [event for event in events if event.type.startswith(("response.custom", "response.output_item"))]
    assert [event.type for event in of_call] == [
        "response.output_item.added",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.output_item.done",
    ]
    added, delta, done, item = of_call
    assert (added.item.type, added.item.call_id, added.item.input) == ("custom_tool_call", "call_0", "")
    assert delta.delta == done.input == item.item.input == "print(42)"
    assert delta.item_id == done.item_id == added.item.id
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].response.output == [item.item]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("written", ['{"code": "print(42)"}', '{"input": "a", "b": 1}', '{"input": 5}'])
async def test_arguments_of_another_form_come_back_as_they_were_written(
    gateway, client, monkeypatch, written: str, streamed: bool
) -> None:
    _calls(gateway, monkeypatch, ("run", written))
    if streamed:
        events = [event async for event in await client.responses.create(**_ASKED, stream=True)]
        (call,) = events[-1].response.output
        (added,) = [event.item for event in events if event.type == "response.output_item.added"]
        assert added.call_id == call.call_id
    else:
        (call,) = (await client.responses.create(**_ASKED)).output
    assert (call.type, call.input) == ("custom_tool_call", written)
    result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "no"}
    turn, told = chat_body({"input": [call.to_dict(), result]})["messages"]
    assert turn["tool_calls"][0]["function"]["arguments"] == written
    assert turn["tool_calls"][0]["id"] == told["tool_call_id"] == "call_0"


@pytest.mark.parametrize("written", ["print(42)", '{"input": "cut o', '"x"', "[1]", ""])
async def test_what_is_no_object_is_the_input(gateway, client, monkeypatch, written: str) -> None:
    _calls(gateway, monkeypatch, ("run", written))
    (call,) = (await client.responses.create(**_ASKED)).output
    assert (call.input, call.call_id) == (written, "call_0")
    (turn,) = chat_body({"input": [call.to_dict()]})["messages"]
    assert json.loads(turn["tool_calls"][0]["function"]["arguments"]) == {"input": written}


@pytest.mark.parametrize("syntax", ["lark", "regex"])
def test_a_grammar_is_refused_with_what_to_do(syntax: str) -> None:
    grammar = {"type": "grammar", "syntax": syntax, "definition": "start: /a/"}
    with pytest.raises(RefusalError, match="the tool 'run' has a format of type 'grammar', and the engine cannot hold"):
        chat_body({"input": "?", "tools": [{**_RUN, "format": grammar}]})


async def test_chat_completions_are_told_of_responses(gateway, client) -> None:
    tool: Any = {"type": "custom", "custom": {"name": "run"}}
    with pytest.raises(openai.BadRequestError, match="a tool of type 'custom' is served in Responses alone"):
        await client.chat.completions.create(model="sql", messages=[{"role": "user", "content": "?"}], tools=[tool])

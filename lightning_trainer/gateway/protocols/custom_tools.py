"""Free-form (custom) tools of Responses as functions of one text, because models are trained to call functions.

The model writes ``{"input": TEXT}``, and the caller gets the text. If the model writes another JSON object, the caller
gets the object as it was written, and the call's id is marked, so that the next prompt has the object as it was
sampled. Arguments that are not a JSON object are also passed on as they were written, but come back as the function's
``input``: the engine takes only objects.
Source: OpenAI API reference, custom tools, 2026.
"""

import json
from collections.abc import Mapping
from typing import Any

import orjson

from lightning_trainer.gateway.errors import RefusalError

CALL, OUTPUT = "custom_tool_call", "custom_tool_call_output"
_INPUT = "input"
_AS_WRITTEN = "-as-written"
"""Ends the id of a call whose caller got all of its arguments as the input."""


def function_of(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a custom tool as a function of chat completions.

    Raises:
        RefusalError: its input has to follow a grammar (400).
    """
    kind = (tool.get("format") or {}).get("type", "text")
    if kind != "text":
        raise RefusalError(
            400,
            f"the tool {tool.get('name')!r} has a format of type {kind!r}, and the engine cannot hold a tool's "
            "input to it: leave the format out, describe it and check the input yourself, or send a function",
            param="tools",
        )
    described = {name: tool[name] for name in ("name", "description") if tool.get(name) is not None}
    text = {"type": "string", "description": "All of the tool's input, as free text."}
    parameters = {"type": "object", "properties": {_INPUT: text}, "required": [_INPUT], "additionalProperties": False}
    return {**described, "parameters": parameters}


def custom_names(tools: Any) -> frozenset[str]:
    """Return the names of the custom tools among those of a request."""
    given = [tool for tool in tools or () if tool.get("type") == "custom"]
    return frozenset(tool["name"] for tool in given if isinstance(tool.get("name"), str))


def input_of(call_id: str, arguments: str) -> tuple[str, str]:
    """Return the id and the input of a call for its caller, from the arguments that the model wrote. The id is marked
    if they are a JSON object of another form."""
    try:
        written = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return call_id, arguments
    if not isinstance(written, dict):
        return call_id, arguments
    if written.keys() == {_INPUT} and isinstance(written[_INPUT], str):
        return call_id, written[_INPUT]
    return call_id + _AS_WRITTEN, arguments


def engine_call_id(call_id: Any) -> Any:
    """Return the engine's id of a call, from its caller's."""
    return call_id.removesuffix(_AS_WRITTEN) if isinstance(call_id, str) else call_id


def arguments_of(item: Mapping[str, Any]) -> Any:
    """Return the arguments that the model wrote, from a call that its caller sends back."""
    given = item.get("input")
    if str(item.get("call_id")).endswith(_AS_WRITTEN):
        return given
    return json.dumps({_INPUT: given}, ensure_ascii=False)

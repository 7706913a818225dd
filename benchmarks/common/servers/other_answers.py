"""The scripted engine's answers on ``/v1/responses`` (OpenAI) and ``/v1/messages`` (Anthropic): text and tool calls.

Neither protocol has a place for token ids, so the answers have none.
"""

import json
from typing import Any

from benchmarks.common.servers.answers import Script, script

Event = tuple[str, dict[str, Any]]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content)


# -- Responses ---------------------------------------------------------------------------------------------------------


def responses_script(body: dict[str, Any]) -> Script:
    items = body.get("input") or []
    items = [{"role": "user", "content": items}] if isinstance(items, str) else items
    system = " ".join(_text(i.get("content")) for i in items if i.get("role") in ("system", "developer"))
    functions = [tool for tool in body.get("tools") or () if tool.get("type") == "function"]
    return script(
        f"{body.get('instructions') or ''} {system}",
        f"{body.get('instructions') or ''} {_text(items)}",
        [function["name"] for function in functions],
        [item["name"] for item in items if item.get("type") == "function_call"],
        {f["name"]: list((f.get("parameters") or {}).get("properties") or {}) for f in functions},
    )


def response(script: Script, body: dict[str, Any], *, status: str = "completed") -> dict[str, Any]:
    usage = {
        "input_tokens": len(script.prompt_ids),
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": len(script.response_ids),
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": len(script.prompt_ids) + len(script.response_ids),
    }
    done = status == "completed"
    return {
        "id": script.response_id,
        "object": "response",
        "created_at": 1_700_000_000,
        "status": status,
        "model": body.get("model"),
        "output": [_item(script)] if done else [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage if done else None,
    }


def _item(script: Script) -> dict[str, Any]:
    if script.call is not None:
        call = script.call
        return {
            "type": "function_call",
            "id": f"fc_{call['id']}",
            "call_id": call["id"],
            "name": call["name"],
            "arguments": call["arguments"],
            "status": "completed",
        }
    part = {"type": "output_text", "text": script.text, "annotations": []}
    message = {"type": "message", "role": "assistant", "status": "completed", "content": [part]}
    return {"id": f"msg_{script.response_id}", **message}


def response_events(script: Script, body: dict[str, Any]) -> list[Event]:
    item = _item(script)
    place = {"output_index": 0, "item_id": item["id"]}
    events: list[Event] = [
        ("response.created", {"response": response(script, body, status="in_progress")}),
        ("response.output_item.added", {"output_index": 0, "item": {**item, "status": "in_progress"}}),
    ]
    if script.call is None:
        part = {**place, "content_index": 0}
        events.append(
            ("response.content_part.added", {**part, "part": {"type": "output_text", "text": "", "annotations": []}})
        )
        events.extend(("response.output_text.delta", {**part, "delta": w, "logprobs": []}) for w in script.words)
        events.append(("response.output_text.done", {**part, "text": script.text, "logprobs": []}))
    else:
        events.append(("response.function_call_arguments.done", {**place, "arguments": script.call["arguments"]}))
    events.append(("response.output_item.done", {"output_index": 0, "item": item}))
    events.append(("response.completed", {"response": response(script, body)}))
    return [(name, {"type": name, "sequence_number": n, **data}) for n, (name, data) in enumerate(events)]


# -- Messages ----------------------------------------------------------------------------------------------------------


def messages_script(body: dict[str, Any]) -> Script:
    system, messages = _text(body.get("system") or ""), body.get("messages") or []
    blocks = [block for m in messages if isinstance(m.get("content"), list) for block in m["content"]]
    tools = body.get("tools") or []
    return script(
        system,
        f"{system} {_text(messages)}",
        [tool["name"] for tool in tools],
        [block["name"] for block in blocks if block.get("type") == "tool_use"],
        {tool["name"]: list((tool.get("input_schema") or {}).get("properties") or {}) for tool in tools},
    )


def message(script: Script, body: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": script.response_id,
        "type": "message",
        "role": "assistant",
        "model": body.get("model"),
        "content": [_block(script)],
        "stop_reason": "tool_use" if script.call else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": len(script.prompt_ids), "output_tokens": len(script.response_ids)},
    }


def _block(script: Script) -> dict[str, Any]:
    if script.call is None:
        return {"type": "text", "text": script.text}
    call = script.call
    return {"type": "tool_use", "id": call["id"], "name": call["name"], "input": json.loads(call["arguments"])}


def message_events(script: Script, body: dict[str, Any]) -> list[Event]:
    whole, block = message(script, body), _block(script)
    start = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 0}}
    empty = {"type": "text", "text": ""} if script.call is None else {**block, "input": {}}
    deltas = (
        [{"type": "text_delta", "text": word} for word in script.words]
        if script.call is None
        else [{"type": "input_json_delta", "partial_json": script.call["arguments"]}]
    )
    events: list[Event] = [
        ("message_start", {"message": start}),
        ("content_block_start", {"index": 0, "content_block": empty}),
        *(("content_block_delta", {"index": 0, "delta": delta}) for delta in deltas),
        ("content_block_stop", {"index": 0}),
        (
            "message_delta",
            {"delta": {"stop_reason": whole["stop_reason"], "stop_sequence": None}, "usage": whole["usage"]},
        ),
        ("message_stop", {}),
    ]
    return [(name, {"type": name, **data}) for name, data in events]

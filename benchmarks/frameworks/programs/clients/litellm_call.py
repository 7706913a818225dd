"""LiteLLM: calls of its own, with a tool."""

from typing import Any

import litellm

from benchmarks.frameworks.program import KEY, MODEL, Task

TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


def play(task: Task) -> None:
    messages: list[Any] = [{"role": "system", "content": task.system}, {"role": "user", "content": task.question}]
    asked: Any = {"model": f"openai/{MODEL}", "api_base": task.base_url, "api_key": KEY, "tools": [TOOL]}
    if task.stream:
        for _ in litellm.completion(messages=messages, stream=True, **asked):
            pass
        return
    first: Any = litellm.completion(messages=messages, **asked).choices[0].message
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "sunny"}
    litellm.completion(messages=[*messages, first.model_dump(), result], **asked)

"""The openai client itself, with which the others are compared."""

from typing import Any

import openai

from benchmarks.frameworks.program import KEY, MODEL, Task

TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


def play(task: Task) -> None:
    chat = openai.OpenAI(base_url=task.base_url, api_key=KEY).chat.completions
    messages: Any = [{"role": "system", "content": task.system}, {"role": "user", "content": task.question}]
    if task.stream:
        for _ in chat.create(model=MODEL, messages=messages, tools=[TOOL], stream=True):
            pass
    else:
        chat.create(model=MODEL, messages=messages, tools=[TOOL])

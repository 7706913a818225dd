"""Demonstrations from scenarios: the calls that a task was made from solve it, so they can be imitated before RL.

A small model seldom makes two calls in a row by itself, and what is never tried cannot be reinforced. The recorded
chain is a right solution that no one had to write.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from lightning_trainer.environments.adapters.mcp_tools import INSTRUCTIONS, is_right
from lightning_trainer.environments.protocol import tools_for_openai
from lightning_trainer.environments.scenarios.chains import Scenario
from lightning_trainer.environments.scenarios.exploring import Server, at


def demonstrations(scenarios: Iterable[Scenario], server: Server, count: int) -> list[dict[str, Any]]:
    """Execute the chains of at most ``count`` scenarios, and return every call of the model as a row of training data.

    Args:
        scenarios: of training; a held-out one that is demonstrated is no longer held out.
        server: executes the chains.

    Returns:
        Rows of a stage's ``data``, in TRL's conversational form: ``prompt``, ``completion`` and ``tools``, as our agent
        sends them in the environment ``mcp``.
    """
    tools = tools_for_openai([tool.tool for tool in server.tools])
    conversations = (conversation(scenario.as_task(()), server) for scenario in scenarios)
    return [
        {"prompt": messages[:place], "completion": [message], "tools": tools}
        for messages in islice(filter(None, conversations), count)
        for place, message in enumerate(messages)
        if message["role"] == "assistant"
    ]


def conversation(task: Mapping[str, Any], server: Server) -> list[dict[str, Any]]:
    """Return a task as the conversation that solves it, in OpenAI's messages; empty if its chain no longer does."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": task["question"]},
    ]
    value: Any = None
    for number, call in enumerate(task["calls"]):
        arguments = call["arguments"] | {name: at(value, path) for name, path in call["taken"].items()}
        result = server.call(call["tool"], arguments)
        if result.failed:
            return []
        value, call_id = result.value, f"call-{number}"
        function = {"name": call["tool"], "arguments": json.dumps(arguments, ensure_ascii=False)}
        tool_calls = [{"id": call_id, "type": "function", "function": function}]
        messages += [
            {"role": "assistant", "content": "", "tool_calls": tool_calls},
            {"role": "tool", "tool_call_id": call_id, "content": result.text},
        ]
    answer = str(task["answer"])
    return [*messages, {"role": "assistant", "content": answer}] if is_right(answer, task["answer"]) else []

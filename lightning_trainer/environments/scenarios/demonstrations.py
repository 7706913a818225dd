"""Demonstrations from scenarios: the calls that a task was made from solve it, so they can be imitated before RL.

A small model seldom makes two calls in a row by itself, and behavior that never occurs cannot be reinforced. The
recorded chain is a correct solution that no one had to write.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from typing import Any

from lightning_trainer.environments.adapters.mcp_tools import INSTRUCTIONS, LONGEST_RESULT, is_right
from lightning_trainer.environments.protocol import tools_for_openai
from lightning_trainer.environments.scenarios.chains import Scenario
from lightning_trainer.environments.scenarios.exploring import Server


def demonstrations(scenarios: Iterable[Scenario], server: Server, count: int) -> list[dict[str, Any]]:
    """Execute the chains of at most ``count`` scenarios, and return every call of the model as a row of training data.

    Args:
        scenarios: training scenarios; a held-out one that is demonstrated is no longer held out.
        server: executes the chains.

    Returns:
        Rows of a stage's ``data``, in TRL's conversational form: ``prompt``, ``completion`` and ``tools``, as our agent
        sends them in the environment ``mcp``.
    """
    tools = tools_for_openai([tool.tool for tool in server.tools])
    conversations = (_conversation(scenario, server) for scenario in scenarios)
    return [
        {"prompt": messages[:place], "completion": [message], "tools": tools}
        for messages in islice(filter(None, conversations), count)
        for place, message in enumerate(messages)
        if message["role"] == "assistant"
    ]


def _conversation(scenario: Scenario, server: Server) -> list[dict[str, Any]]:
    """Return the conversation that solves a scenario, as OpenAI's messages; empty if its chain no longer solves it."""
    made, answer = scenario.chain.executed(server), str(scenario.answer)
    if scenario.chain.answer(made) != scenario.answer or not is_right(answer, scenario.answer):
        return []
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": scenario.question},
    ]
    for number, (link, (arguments, result)) in enumerate(zip(scenario.chain.links, made, strict=True)):
        function = {"name": link.tool, "arguments": json.dumps(arguments, ensure_ascii=False)}
        call = {"id": f"call-{number}", "type": "function", "function": function}
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": result.text[:LONGEST_RESULT]},
        ]
    return [*messages, {"role": "assistant", "content": answer}]

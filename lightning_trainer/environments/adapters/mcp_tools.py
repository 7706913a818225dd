"""Any MCP server as an environment: the model gets its tools, and their results are the observations.

Tasks come from a file, as ``lightning-trainer scenarios mcp`` writes it: ``question``, ``answer``, and the server's
``command``. The model calls tools as often as it likes, then answers in text, which is compared with the answer.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from lightning_trainer.environments.mcp_server import McpServer
from lightning_trainer.environments.protocol import Action, Observation, Step, Task, ToolResult

INSTRUCTIONS = "Use the tools. When you know it, answer with the value alone."
"""The system message."""
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:[eE][+-]?\d+)?")
_MORE_WORDS = 80
"""How many characters longer than the expected value an answer may be, so that listing everything does not pay."""
LONGEST_RESULT = 20_000
"""How many characters of a tool's result the model is shown."""
_TIMEOUT_S = 20.0
_END_S = 10.0
"""Time for an earlier server to end."""


class McpTools:
    """An MCP server's tools as an environment.

    Args:
        command: the server's command or URL, in place of the one in each task.
        max_turns: after this many turns the attempt is lost.
        timeout_s: limit of the server's start, and of each call of a tool.
    """

    version = "1"

    def __init__(self, command: str | None = None, *, max_turns: int = 12, timeout_s: float = _TIMEOUT_S) -> None:
        self._command = shlex.split(command) if command else None
        self._max_turns = max_turns
        self._timeout_s = timeout_s
        self._running: McpServer | None = None
        self._running_command: list[str] | None = None
        self._changed = False

    def reset(self, task: Task) -> Observation:
        command = self._command or list(task.fields.get("command") or ())
        if not command:
            raise ValueError("the task has no command of an MCP server; write mcp:COMMAND, or make tasks of one")
        # If a called tool may have changed something, the next attempt must not get the same server.
        if self._changed or self._running is None or not self._running.alive or self._running_command != command:
            self.close()
            self._running = McpServer(command, timeout_s=self._timeout_s)
            self._running_command = command
            self._changed = False
        self._reads_only = {tool.tool.name for tool in self._running.tools if tool.reads_only}
        self._answer: Any = task.fields.get("answer")
        self._turns = 0
        return Observation(
            str(task.fields.get("question", "")),
            tools=tuple(tool.tool for tool in self._running.tools),
            instructions=INSTRUCTIONS,
        )

    def step(self, action: Action) -> Step:
        self._turns += 1
        over = self._turns >= self._max_turns
        if action.tool_calls:
            results = tuple(ToolResult(call.id, self._called(call.name, call.arguments)) for call in action.tool_calls)
            return Step(Observation(tool_results=results), 0.0, over)
        if self._answer is None:
            return Step(Observation(""), None, True)
        return Step(Observation(""), float(is_right(action.text, self._answer)), True)

    def close(self) -> None:
        if self._running is not None:
            self._running.close()
            self._running = None

    def _called(self, name: str, arguments: Any) -> str:
        assert self._running is not None
        if "_unreadable" in arguments:
            return "error: the arguments are not a JSON object"
        self._changed |= name not in self._reads_only
        return self._running.call(name, arguments).text[:LONGEST_RESULT]


def longest_s(options: Mapping[str, Any]) -> float:
    """Return how long a call, or a new server, may take with these options."""
    timeout_s = options.get("timeout_s", _TIMEOUT_S)
    return timeout_s + _END_S if isinstance(timeout_s, int | float) else 0.0  # the environment itself refuses others


def is_right(said: str, answer: Any) -> bool:
    """Whether the text contains the recorded value: as the last number in it, or as whole words in a short answer."""
    if isinstance(answer, bool):
        words = re.findall(r"\b(true|false|yes|no)\b", said.lower())
        return bool(words) and (words[-1] in ("true", "yes")) == answer
    if isinstance(answer, int | float):
        numbers = [number.replace(",", "") for number in _NUMBER.findall(said)]
        return bool(numbers) and _is_number(numbers[-1], answer)
    wanted, given = _words(str(answer)), _words(said)
    if not wanted:  # the expected answer is only symbols, or empty
        symbols = str(answer).strip()
        return bool(symbols) and symbols in said and len(said) <= len(symbols) + _MORE_WORDS
    there = any(given[start : start + len(wanted)] == wanted for start in range(len(given)))
    return there and len(" ".join(given)) <= len(" ".join(wanted)) + _MORE_WORDS


def _is_number(said: str, answer: int | float) -> bool:
    if isinstance(answer, int):  # exactly, because an id that is off by one is wrong
        return said == str(answer) or float(said) == answer
    return abs(float(said) - answer) <= 1e-6 * max(1.0, abs(answer))


def _words(text: str) -> list[str]:
    words = (word.rstrip(".:") for word in re.sub(r"[^\w.@:/+-]+", " ", text.lower()).split())
    return [word for word in words if re.search(r"\w", word)]

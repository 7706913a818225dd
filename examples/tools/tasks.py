"""Tasks that are made from a server's list of tools alone, and what a model of this size is shown of them.

``lightning-trainer scenarios mcp`` calls the tools, and asks for what they answered; a digest of each task decides
whether it is held out. What the model is shown are further tasks, with the calls that they were made from.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_trainer.environments.mcp_server import McpServer
from lightning_trainer.environments.scenarios.exploring import at
from lightning_trainer.rollouts.task_file import FileTask, read_tasks

DIFFICULTY = "1-2"
"""Calls that a task takes."""
_TRAINING = 400
_HELD_OUT = 200
_CALLS = 500


@dataclass(frozen=True)
class Tasks:
    train: tuple[FileTask, ...]
    held_out: tuple[FileTask, ...]
    examples: tuple[dict[str, Any], ...]
    """Messages: question, calls, results and answer of a task of each difficulty, which is in neither of the two."""


def made(server: Sequence[str]) -> Tasks:
    """Make tasks of a server.

    Args:
        server: the command that starts it.

    Raises:
        subprocess.CalledProcessError: nothing can be made of it; why is on standard error.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "lightning_trainer", "scenarios", "mcp", "--difficulty", DIFFICULTY]
        command += ["--count", str(_TRAINING), "--held-out", str(_HELD_OUT), "--budget", str(_CALLS)]
        subprocess.run([*command, "--out", folder, "--", *server], check=True)
        train = read_tasks(Path(folder, "train.jsonl"))
        held_out = read_tasks(Path(folder, "held-out.jsonl"))
    with McpServer(server) as running:
        shown = {task.fields["difficulty"]: task for task in reversed(train)}.values()
        messages = [message for task in shown for message in played(task.fields, running)]
    return Tasks(tuple(task for task in train if task not in shown), held_out, tuple(messages))


def played(task: Mapping[str, Any], server: McpServer) -> list[dict[str, Any]]:
    """Return a task as a conversation that solves it, with the calls that it was made from."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": task["question"]}]
    found: Any = None
    for number, call in enumerate(task["calls"]):
        arguments = call["arguments"] | {name: at(found, way) for name, way in call["taken"].items()}
        name, result = f"{task['id']}-{number}", server.call(call["tool"], arguments)
        function = {"name": call["tool"], "arguments": json.dumps(arguments)}
        calls = [{"id": name, "type": "function", "function": function}]
        messages += [
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "tool_call_id": name, "content": result.text},
        ]
        found = result.value
    return [*messages, {"role": "assistant", "content": str(task["answer"])}]

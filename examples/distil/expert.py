"""A scripted expert answers the search agent's training questions, and what it says becomes demonstrations.

    python examples/distil/expert.py examples/distil/demonstrations.jsonl

Each line is one call: the conversation so far (`prompt`) and what the expert said (`completion`), in TRL's form, which
a stage reads as its `data`. Only what led to the right answer is kept. The file is there already: this writes it anew.
"""

import json
import sys
from pathlib import Path
from typing import Any

import lightning_instrumentation as lt

sys.path.append(str(Path(__file__).parents[1] / "search"))

from agent import solve  # pyright: ignore[reportMissingImports]
from corpus import people  # pyright: ignore[reportMissingImports]
from tasks import Task, score, train_tasks  # pyright: ignore[reportMissingImports]

QUESTIONS = 48
_STEP = 0
"""Steps of training count from 1: these questions are the expert's own, about people of training."""


def actions(task: Task) -> tuple[str, ...]:
    """Return what the expert says, call by call."""
    who = next(one for one in people() if one.name in task.question)
    return f"search: {who.name}", f"search: {who.town}", f"answer: {task.answer}"


def trace(task: Task) -> list[dict[str, Any]]:
    """Return the agent's calls at a task with the expert in the place of the model; none where the answer is wrong."""
    calls: list[dict[str, Any]] = []
    script = iter(actions(task))

    def say(messages: list[dict[str, str]], temperature: float) -> str:
        said = next(script)
        calls.append({"prompt": list(messages), "completion": [{"role": "assistant", "content": said}]})
        return said

    with lt.uncaptured():
        answer = solve(task.question, say=say)
    return calls if score(answer, task) == 1.0 else []


def write(path: Path) -> int:
    """Write the demonstrations, and return how many there are."""
    calls = [call for task in train_tasks(_STEP, QUESTIONS) for call in trace(task)]
    path.write_text("".join(json.dumps(call) + "\n" for call in calls))
    return len(calls)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/distil/expert.py FILE")
    print(f"{write(Path(sys.argv[1]))} demonstrations in {sys.argv[1]}")

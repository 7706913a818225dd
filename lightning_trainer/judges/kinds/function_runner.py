"""Runs one of the user's Python functions: ``python -m ... module:function``, JSON in, JSON on the last line out.

The function gets the judge's input as a dict, or, if it is a reward function of verl's, TRL's or OpenAI's form, the
values that its parameters name. It returns a number, ``{"score": ..., "reason": ...}``, None, or for several attempts,
agents, or calls ``{"scores": ...}``. Anything it prints goes to standard error.
"""

import contextlib
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning_trainer.environments.reward_function import score, takes_answer
from lightning_trainer.environments.task_fields import prompt_of


def main(named: str) -> None:
    """Answer the question on standard input with the named function, as JSON on standard output."""
    question = json.load(sys.stdin)
    sys.path.insert(0, os.getcwd())
    with contextlib.redirect_stdout(sys.stderr):
        function = _function(named)
        said = _scored(function, question) if takes_answer(function) and "answer" in question else function(question)
    print(json.dumps(said))


def _scored(function: Callable[..., Any], attempt: dict[str, Any]) -> dict[str, Any]:
    """Return what a reward function says about an attempt's last answer; the prompt that it gets is the input's, or
    else that of the first call."""
    if attempt["answer"] is None:
        return {"score": None, "reason": "no answer was recorded"}
    fields = attempt["input"] if isinstance(attempt["input"], dict) else {}
    prompt = prompt_of(fields) or next((call["messages"] for call in attempt["calls"]), "")
    said = score(function, fields, prompt, attempt["answer"])
    return {"score": said.value, "reason": said.reason}


def _function(named: str) -> Callable[[Any], Any]:
    place, _, name = named.rpartition(":")
    if not place.endswith(".py"):
        return getattr(importlib.import_module(place), name)
    path = Path(place)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return getattr(module, name)


if __name__ == "__main__":
    main(sys.argv[1])

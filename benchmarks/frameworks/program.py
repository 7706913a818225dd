"""A process that runs one framework's program as its user wrote it: standard library, and nothing of ours unless asked.

    OPENAI_BASE_URL=URL python -m benchmarks.frameworks.program agents/agno_agent agno/whole 'agno/all;at-once=4;stream'

Each further word is a part of the work, counted under its name: how many tasks at once, whether as a stream, and, with
``agent=NAME``, in a function with our decorator, unless ``without`` leaves the decorator out. The process prints one
line of JSON: the parts that failed, and why.
"""

import asyncio
import inspect
import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

AGENT = "weatherman"
MODEL = "m"
KEY = "unused"


@dataclass(frozen=True, slots=True)
class Task:
    base_url: str
    """The model's, with ``/v1``."""
    agent: str
    part: str
    stream: bool

    @property
    def system(self) -> str:
        return f"You are AGENT[{self.agent}]. Be brief."

    @property
    def question(self) -> str:
        return f"What is the weather in Paris? ROLLOUT[{self.part}]"


def _options(named: Sequence[str]) -> dict[str, str]:
    pairs = (option.partition("=") for option in named)
    return {name: value for name, _, value in pairs}


def main() -> None:
    program, *words = sys.argv[1:]
    parts = [(word.split(";")[0], _options(word.split(";")[1:])) for word in words]
    failed: dict[str, str] = {}
    decorate = _decorator(any("agent" in options and "without" not in options for _, options in parts))
    play = import_module(f"benchmarks.frameworks.programs.{program.replace('/', '.')}").play
    for part, options in parts:
        agent = options.get("agent")
        count = int(options.get("at-once", 1))
        tasks = [Task(os.environ["OPENAI_BASE_URL"], agent or AGENT, part, "stream" in options)] * count
        try:
            _play(decorate(agent)(play) if agent and "without" not in options else play, tasks)
        except BaseException as error:
            failed[part] = f"{type(error).__name__}: {error}"[:300]
    print(json.dumps(failed), flush=True)


def _decorator(wanted: bool) -> Callable[[str], Any]:
    if not wanted:
        return lambda _: None
    import lightning_instrumentation as lt  # before the framework, as the README has it

    lt.init()
    return lt.agent


def _play(play: Callable[[Task], Any], tasks: Sequence[Task]) -> None:
    if inspect.iscoroutinefunction(play):
        asyncio.run(_together(play, tasks))
    else:
        _in_threads(play, tasks)


async def _together(play: Callable[[Task], Any], tasks: Sequence[Task]) -> None:
    await asyncio.gather(*(play(task) for task in tasks))


def _in_threads(play: Callable[[Task], Any], tasks: Sequence[Task]) -> None:
    errors: list[Exception] = []

    def one(task: Task) -> None:
        try:
            play(task)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


if __name__ == "__main__":
    main()

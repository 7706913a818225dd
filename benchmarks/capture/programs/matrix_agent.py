"""A captured program: one framework's scenario in every mode, one rollout at a time and many at once.

    python -m benchmarks.capture.programs.matrix_agent --scenario langchain --engine URL --endpoint URL --rollouts 40

Prints one line: the errors of every cell that failed, and what the client reports about itself. A rollout's id says in
which cell it ran: ``{scenario}/{mode}/{load}/{number}``.
"""

import argparse
import asyncio
import inspect
import json
import threading
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import lightning_instrumentation as lt

from benchmarks.capture import scenarios
from benchmarks.capture.scenarios import Scenario, Task

LOADS = ("single", "concurrent")


def _one(play: Callable[[Task], Any], task: Task) -> None:
    with lt.rollout("weather", rollout_id=task.rollout):
        play(task)


async def _one_async(play: Callable[[Task], Any], task: Task) -> None:
    async with lt.rollout("weather", rollout_id=task.rollout):
        await play(task)


def run_cell(play: Callable[[Task], Any], tasks: Sequence[Task], loop: asyncio.Runner) -> list[str]:
    """Play all tasks at once, in threads or as tasks of one event loop; return what went wrong.

    The loop is the program's only one: frameworks share connections, and those belong to the loop that opened them.
    """
    errors: list[str] = []
    if inspect.iscoroutinefunction(play):

        async def together() -> list[Any]:
            return await asyncio.gather(*(_one_async(play, task) for task in tasks), return_exceptions=True)

        return [_sentence(error) for error in loop.run(together()) if isinstance(error, BaseException)]
    # No thread starts before all are ready.
    gate = threading.Barrier(len(tasks))

    def wait_and_play(task: Task) -> None:
        gate.wait(60)
        try:
            _one(play, task)
        except Exception as error:
            errors.append(_sentence(error))

    threads = [threading.Thread(target=wait_and_play, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def _sentence(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:200]


def play_all(name: str, scenario: Scenario, engine: str, rollouts: int) -> dict[str, list[str]]:
    failed = {}
    with asyncio.Runner() as loop:
        for (mode, play), load in product(scenario.modes().items(), LOADS):
            cell = f"{name}/{mode}/{load}"
            count = rollouts if load == "concurrent" else 1
            errors = run_cell(play, [Task(engine, f"{cell}/{number}") for number in range(count)], loop)
            if errors:
                failed[cell] = errors
    return failed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scenario", required=True)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--rollouts", type=int, required=True)
    options = parser.parse_args()
    # First, as in a program of two lines: hooks are installed before the framework is imported.
    lt.init(options.endpoint, trusted_hosts=[options.engine])
    try:
        scenario = scenarios.load(options.scenario)
    except ImportError as error:
        print(json.dumps({"absent": str(error)}), flush=True)
        return
    failed = play_all(options.scenario, scenario, options.engine, options.rollouts)
    delivered = lt.flush(60.0)
    told = {"failed": failed, "delivered": delivered, "not_captured": dict(lt.stats().failed)}
    print(json.dumps({**told, "modes": list(scenario.modes())}), flush=True)


if __name__ == "__main__":
    main()

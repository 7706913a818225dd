"""What one step costs in addition to a direct call of the environment's own method."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.common.rows import Row, at_most
from benchmarks.environments.world import World
from lightning_trainer.environments import Action, Task, ToolCall
from lightning_trainer.environments.limits import Limits
from lightning_trainer.environments.registry import EnvironmentSpec, launch_of
from lightning_trainer.environments.session import InProcess, Session
from lightning_trainer.environments.worker.process import EnvironmentProcess

TITLE = "Milliseconds a step beyond a direct call (median)"
_WORLD = Path(__file__).with_name("world.py")
_TASK = Task("world", "1")
_IN_PROCESS_MS, _PIPE_MS = 1.0, 3.0
_CALLS = tuple(ToolCall("look", {"place": "kitchen", "number": number}, str(number)) for number in range(3))


def run(quick: bool) -> list[Row]:
    rows = []
    for size in (200, 20_000):
        for name, action in (("text", Action("go north" * 10)), ("three calls", Action("", _CALLS))):
            world = World(size=size)
            world.reset(_TASK)
            direct = _median(lambda world=world, action=action: world.step(action), quick)
            session = Session(InProcess(World(size=size)), _TASK)
            inside = _median(lambda session=session, action=action: session.step(action), quick)
            process = EnvironmentProcess(launch_of(EnvironmentSpec.parse(f"{_WORLD}:World?size={size}")), Limits())
            session = Session(process, _TASK)
            behind = _median(lambda session=session, action=action: session.step(action), quick)
            process.close()
            what = f"{name}, {size:,} characters"
            rows.append(at_most("steps", f"in process: {what}", inside - direct, _IN_PROCESS_MS, "ms"))
            rows.append(at_most("steps", f"behind a pipe: {what}", behind - direct, _PIPE_MS, "ms"))
    return rows


def _median(step: Callable[[], object], quick: bool) -> float:
    times = []
    for _ in range(300 if quick else 3000):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000

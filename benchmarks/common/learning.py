"""The quickstart's agent and configuration, trained for some steps: rewards, metrics and CPU time of each."""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.daemons import cpu_s_of_all, example_configuration, running_daemon
from benchmarks.common.processes import in_own_process

_EXAMPLE = Path(__file__).parents[2] / "examples" / "calculator"
_POLICY = "calculator"


@dataclass(frozen=True, slots=True)
class Learning:
    name: str
    steps: int
    tasks: int
    """Groups of a step, of 7 attempts each."""
    ways: tuple[Callable[[Any], Any], ...] = ()
    """Changes to each request of the agent's model (LangChain's ``ModelRequest``), one a step, in turn; functions at
    module level, since another process calls them. Empty: no change."""
    lr: float | None = None
    """None: the quickstart's."""
    policy: str = ""
    """Lines that end the policy's section of ``lightning.toml``."""


def learned(learning: Learning) -> list[dict[str, Any]]:
    """Train, and return each step's row of metrics with ``cpu_s``: CPU-seconds of all processes since the beginning."""
    began = time.perf_counter()
    rows = in_own_process(_train, learning)
    print(f"{learning.name}: {learning.steps} steps in {time.perf_counter() - began:.0f} s", flush=True)
    return rows


def _train(learning: Learning) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="lightning-bench-") as name:
        folder = Path(name)
        text = example_configuration("calculator")
        text = _with(text, "groups_per_step = 10", f"groups_per_step = {learning.tasks}")
        if learning.lr is not None:
            text = _with(text, "lr = 3e-5", f"lr = {learning.lr:g}")
        (folder / "lightning.toml").write_text(f"{text}{learning.policy}\n")
        with running_daemon(folder, _POLICY):
            cpu_s = _steps(learning)
        lines = (folder / "state" / "metrics" / f"{_POLICY}.jsonl").read_text().splitlines()
    rows = sorted(map(json.loads, lines), key=lambda row: row["step"])
    return [{**row, "cpu_s": cpu_s[row["step"]] - cpu_s[0]} for row in rows if row["step"] < len(cpu_s)]


def _with(text: str, setting: str, other: str) -> str:
    if setting not in text:
        raise ValueError(f"the quickstart's configuration has no {setting!r} any more")
    return text.replace(setting, other)


def _steps(learning: Learning) -> list[float]:
    """Train step by step; return CPU-seconds of all processes at the beginning and after each step."""
    sys.path.insert(0, str(_EXAMPLE))
    from agent import solve  # pyright: ignore[reportMissingImports]
    from langchain.agents.middleware import AgentMiddleware, wrap_model_call
    from tasks import score, train_tasks  # pyright: ignore[reportMissingImports]

    from lightning_trainer.rollouts import Runner

    middleware: tuple[AgentMiddleware, ...] = ()

    def attempt(task: Any) -> float:
        return score(solve(task.question, temperature=1.0, middleware=middleware), task)

    ways = [(wrap_model_call(lambda request, handler, way=way: handler(way(request))),) for way in learning.ways]
    runner, cpu_s = Runner(_POLICY, attempt), [cpu_s_of_all()]
    for step in range(1, learning.steps + 1):
        if ways:
            middleware = ways[(step - 1) % len(ways)]
        runner.train(lambda number: train_tasks(number, learning.tasks), steps=step)
        cpu_s.append(cpu_s_of_all())
    return cpu_s

"""The quickstart's loop for some steps: daemon, trainer, engine and the calculator agent, as a user runs them."""

import json
import sqlite3
import sys
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.daemons import example_configuration, policy_status, running_daemon
from benchmarks.loop.cpu_watch import CpuWatch

EXAMPLE = Path(__file__).parents[2] / "examples" / "calculator"
POLICY = "calculator"
_GROUPS = 10


@dataclass(frozen=True, slots=True)
class LoopStep:
    step: int
    seconds: Mapping[str, float]
    """The daemon's own: ``build`` and ``train``."""
    rollout_s: float
    publish_s: float | None
    """None: the step had nothing to publish."""
    first_token_s: float
    """From the step's end to a token of the version that it published."""
    rollout_cpu_s: Mapping[str, float]
    """By kind of process."""
    update_cpu_s: Mapping[str, float]
    """From the last rollout's end to the step's: training and publishing."""
    tokens_trained: int
    tokens_computed: int
    tokens_sequential: int


def write_configuration(folder: Path, model: str) -> None:
    """Write the quickstart's configuration, with a port of its own."""
    text = example_configuration("calculator")
    (folder / "lightning.toml").write_text(text.replace("embedded:smollm2-135m-instruct", model))


def run_loop(folder: Path, steps: int) -> list[LoopStep]:
    """Train ``steps`` steps by the configuration in the folder."""
    with running_daemon(folder, POLICY) as url, CpuWatch() as watch:
        sys.path.insert(0, str(EXAMPLE))
        from agent import solve  # pyright: ignore[reportMissingImports]
        from tasks import score, train_tasks  # pyright: ignore[reportMissingImports]

        from lightning_trainer.rollouts import Runner, StepEnded

        rollouts: list[tuple[float, dict[str, float], dict[str, float], float]] = []

        def on_event(event: Any) -> None:
            if isinstance(event, StepEnded):
                ended = time.monotonic()
                rolled_out = ended - event.wait_s
                cpu_s = watch.between(rolled_out - event.rollout_s, rolled_out)
                rollouts.append((event.rollout_s, cpu_s, watch.between(rolled_out, ended), _first_token_s(url)))

        def attempt(task: Any) -> float:
            return score(solve(task.question, temperature=1.0), task)

        Runner(POLICY, attempt, on_event=on_event).train(lambda step: train_tasks(step, _GROUPS), steps=steps)
        status = policy_status(url, POLICY)
    published = {version["version"]: version["publish_s"] for version in status["versions"]}
    return [
        LoopStep(
            step=step["step"],
            seconds=step["seconds"],
            rollout_s=rollout_s,
            publish_s=published.get(step["step"]),
            first_token_s=first_token_s,
            rollout_cpu_s=rollout_cpu_s,
            update_cpu_s=update_cpu_s,
            **{name: step[name] for name in ("tokens_trained", "tokens_computed", "tokens_sequential")},
        )
        for step, (rollout_s, rollout_cpu_s, update_cpu_s, first_token_s) in zip(status["steps"], rollouts, strict=True)
    ]


def _first_token_s(url: str) -> float:
    body = {"model": POLICY, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    began = time.perf_counter()
    with urllib.request.urlopen(request, timeout=120) as response:
        response.read()
    return time.perf_counter() - began


def sampled_tokens(folder: Path) -> int:
    """Return how many tokens were sampled in the loop's attempts, trained or not."""
    database = sqlite3.connect(folder / "state" / "lightning.sqlite")
    return database.execute("SELECT coalesce(sum(tokens), 0) FROM ledger").fetchone()[0]

"""The calculator agent trained twice, with free and with a forced tool call: rewards, mismatch, clipped tokens.

The same tasks, seeds, model and steps: the quickstart's configuration (``examples/calculator/lightning.toml``), one
daemon after the other. The reward of a step is what its attempts earned before it.
"""

import json
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

from capture_parts.rows import Row, at_least, at_most
from loop_parts.daemon import running_daemon

TITLE = "The calculator agent with a free and with a forced tool call"
_EXAMPLE = Path(__file__).parents[2] / "examples" / "calculator"
_POLICY = "calculator"
_STEPS, _QUICK_STEPS = 26, 4


def run(quick: bool) -> list[Row]:
    free, forced = (_in_a_process(forced_tool, quick) for forced_tool in (False, True))
    rows = [row for name, found in (("free", free), ("forced", forced)) for row in _rows(name, found)]
    gain = _gain(forced) - _gain(free)
    return [*rows, at_least("learning", "gain in reward, forced less free", gain, 0.0 if not quick else -0.1, "")]


def _in_a_process(forced_tool: bool, quick: bool) -> list[dict[str, Any]]:
    """Each has a process of its own: a client stays with the daemon that it was started with."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_train, forced_tool, quick).result()


def _train(forced_tool: bool, quick: bool) -> list[dict[str, Any]]:
    steps, tasks = (_QUICK_STEPS, 4) if quick else (_STEPS, 10)
    with tempfile.TemporaryDirectory(prefix="lightning-bench-") as name:
        folder = Path(name)
        text = (_EXAMPLE / "lightning.toml").read_text()
        text = text.replace('state_dir = ".lightning"', 'state_dir = "state"\nport = 0')
        text = text.replace("groups_per_step = 10", f"groups_per_step = {tasks}")
        (folder / "lightning.toml").write_text(text)
        began = time.perf_counter()
        with running_daemon(folder, _POLICY):
            if str(_EXAMPLE) not in sys.path:
                sys.path.insert(0, str(_EXAMPLE))
            from agent import solve  # pyright: ignore[reportMissingImports]
            from tasks import score, train_tasks  # pyright: ignore[reportMissingImports]

            from lightning_trainer.rollouts import Runner

            def attempt(task: Any) -> float:
                return score(solve(task.question, temperature=1.0, forced_tool=forced_tool), task)

            Runner(_POLICY, attempt).train(lambda step: train_tasks(step, tasks), steps=steps)
        lines = (folder / "state" / "metrics" / f"{_POLICY}.jsonl").read_text().splitlines()
        print(
            f"{'forced' if forced_tool else 'free'}: {steps} steps in {time.perf_counter() - began:.0f} s", flush=True
        )
    return sorted(map(json.loads, lines), key=lambda row: row["step"])


def _gain(steps: list[dict[str, Any]]) -> float:
    """Mean reward of the second half of the steps less that of the first."""
    rewards = [step["reward/mean"] for step in steps if "reward/mean" in step]
    return fmean(rewards[len(rewards) // 2 :]) - fmean(rewards[: len(rewards) // 2])


def _rows(name: str, steps: list[dict[str, Any]]) -> list[Row]:
    trained = [step for step in steps if "mismatch/abs_mean" in step]

    def mean(metric: str) -> float | None:
        return fmean(step.get(metric, 0.0) for step in trained) if trained else None

    rewards = ", ".join(f"{step['reward/mean']:.2f}" for step in steps if "reward/mean" in step)
    return [
        Row("learning", f"{name}: gain in reward", _gain(steps), note=f"by step: {rewards}"),
        Row("learning", f"{name}: mismatch/abs_mean", mean("mismatch/abs_mean"), "nats"),
        at_most("learning", f"{name}: clipped tokens", mean("actor/pg_clipfrac"), 0.02, ""),
        Row("learning", f"{name}: grad_norm", mean("grad_norm")),
        Row("learning", f"{name}: tokens without a choice", mean("sampling/no_choice"), note="share, masked"),
    ]

"""Canaries with real engines: the calculator agent in use, its engine and trainer, and a candidate's engine.

The policy learns from live traffic: every question is asked seven times, by a pool of people that never waits for the
trainer. Version 1 is trained from version 0 and answers half of the rollouts until its canary decides. With the
learning rate of ``harmful`` the step ruins the model; with that of ``harmless`` it hardly changes it.
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from benchmarks.common.daemons import example_configuration, running_daemon
from benchmarks.common.processes import in_own_process

_EXAMPLE = Path(__file__).parents[2] / "examples" / "calculator"
_POLICY = "calculator"
_PEOPLE = 24
"""People who ask at the same time."""
_ASKED = 7
"""Times that a question is asked: the policy's group_size."""
_TEMPERATURE = 0.4
"""Of the agent in use: at 1.0 it is right in 4 % before training, too few for a loss to show."""
_CANARY = """group_by = "task"

[policy.canary]
share = 0.5
tolerance = 0.15
"""
_PATIENCE_S = 1800.0
"""How long to wait for a candidate and its canary's decision, on a slow machine."""
_LOOK_EVERY_S = 10.0
KINDS = {"harmful": ("1e-3", "refused"), "harmless": ("1e-6", "promoted")}
"""Learning rate of the step that makes the candidate, and what its canary should decide."""


@dataclass(frozen=True, slots=True)
class Decided:
    """How the canary of version 1 ended."""

    decision: str
    candidate: int
    """Rollouts that the candidate answered."""
    live: int
    """Rollouts that the live version answered meanwhile."""
    means: tuple[float, float]
    """Mean rewards, the candidate's first."""
    failed: int
    """Rollouts that ended in an error, of the whole traffic."""
    seconds: float
    """From the candidate's start to the decision."""
    reason: str


def run() -> bool:
    """Print a row for each kind, and return whether both were decided as they should be."""
    print(f"{'candidate':16} {'decision':>9} {'its rollouts':>13} {'live':>6} {'reward':>7} {'live':>6} {'seconds':>8}")
    held = True
    for kind, (rate, wanted) in KINDS.items():
        found = in_own_process(_deployed, rate)
        print(
            f"{kind:16} {found.decision:>9} {found.candidate:13} {found.live:6} {found.means[0]:7.2f} "
            f"{found.means[1]:6.2f} {found.seconds:8.0f}",
            flush=True,
        )
        print(f"    {found.failed} rollouts failed{found.reason and '; '}{found.reason}", flush=True)
        held &= found.decision == wanted and not found.failed
    return held


def configuration(rate: str) -> str:
    """Return the calculator's ``lightning.toml`` with that learning rate, from the first step on, and a canary.

    Raises:
        ValueError: the example does not have each of the settings that are replaced here exactly once.
    """
    text = example_configuration("calculator")
    for said, wanted in {"lr = 3e-5": f"lr = {rate}", "warmup_steps = 2": "warmup_steps = 0"}.items():
        if text.count(said) != 1:
            raise ValueError(f"examples/calculator/lightning.toml has no {said} to replace; name its rate here")
        text = text.replace(said, wanted)
    return text + _CANARY


def _deployed(rate: str) -> Decided:
    with tempfile.TemporaryDirectory(prefix="lightning-bench-") as name:
        folder = Path(name)
        (folder / "lightning.toml").write_text(configuration(rate))
        with running_daemon(folder, _POLICY):
            return _in_use(folder)


def _in_use(folder: Path) -> Decided:
    """Ask until the canary has decided.

    Raises:
        TimeoutError: there was no candidate, or no decision.
    """
    sys.path.insert(0, str(_EXAMPLE))
    import lightning_instrumentation as lt
    from agent import solve  # pyright: ignore[reportMissingImports]
    from tasks import score, train_tasks  # pyright: ignore[reportMissingImports]

    lt.init()
    failures: list[Exception] = []
    ended, lock = False, threading.Lock()
    tasks = (task for seed in count() for task in train_tasks(seed, 10) for _ in range(_ASKED))

    def person() -> None:
        while not ended:
            with lock:
                task = next(tasks)
            try:
                with lt.rollout(task.id, input=task.question):
                    lt.reward(score(solve(task.question, temperature=_TEMPERATURE), task))
            except Exception as error:
                failures.append(error)
                time.sleep(1)

    give_up = time.monotonic() + _PATIENCE_S
    with ThreadPoolExecutor(_PEOPLE) as pool:
        people = [pool.submit(person) for _ in range(_PEOPLE)]
        try:
            while (row := _canary_of(folder, 1)) is None or row["state"] == "going_on":
                if time.monotonic() > give_up:
                    log = (folder / "daemon.log").read_text()[-500:]
                    raise TimeoutError(f"version 1 was not decided within {_PATIENCE_S:.0f} s; the daemon's log: {log}")
                time.sleep(_LOOK_EVERY_S)
        finally:
            ended = True
        for one in people:
            one.result()
    evidence = row["evidence"]
    return Decided(
        row["state"],
        *evidence["rollouts"],
        means=tuple(evidence["means"]),
        failed=len(failures),
        seconds=(row["ended_ns"] - row["began_ns"]) / 1e9,
        reason=row["reason"] or "",
    )


def _canary_of(folder: Path, version: int) -> dict | None:
    command = [sys.executable, "-m", "lightning_trainer", "versions", "--json"]
    done = subprocess.run(
        [*command, "--config", str(folder / "lightning.toml")], capture_output=True, text=True, check=True
    )
    return next((one["canary"] for one in json.loads(done.stdout) if one["version"] == version), None)

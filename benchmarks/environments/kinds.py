"""Attempts an hour of each kind of environment in one process, played at random by a policy that takes no time."""

import random
import time
from pathlib import Path

from benchmarks.common.rows import Row
from lightning_trainer.environments import Action, Task
from lightning_trainer.environments.errors import EnvironmentFailedError, UnknownEnvironmentError
from lightning_trainer.environments.limits import Limits
from lightning_trainer.environments.registry import EnvironmentSpec, launch_of
from lightning_trainer.environments.session import Session
from lightning_trainer.environments.worker.process import EnvironmentProcess

TITLE = "Attempts an hour by kind, one process, no model"
_FOLDER = Path(__file__).parents[2] / ".venv-environments"
_MOVES = ("up", "down", "left", "right")
_CODE = ("```python\ndef f(n): return n\n```",)
_KINDS = {
    "frozenlake:4x4": _MOVES,
    "sokoban:6x6": _MOVES,
    "gymnasium:CliffWalking-v1": _MOVES,
    "reasoning-gym:chain_sum": ("<answer>5</answer>",),
    "textarena:GuessTheNumber-v0": tuple(f"[{number}]" for number in range(1, 21)),
    "code?turns=1": _CODE,
}


def run(quick: bool) -> list[Row]:
    return [_row(kind, actions, 3.0 if quick else 15.0) for kind, actions in _KINDS.items()]


def _row(kind: str, actions: tuple[str, ...], seconds: float) -> Row:
    try:
        process = EnvironmentProcess(launch_of(EnvironmentSpec.parse(kind), _FOLDER), Limits())
    except (UnknownEnvironmentError, EnvironmentFailedError) as error:
        return Row("kinds", kind, None, "attempts/h", note=str(error))
    chance = random.Random(0)
    attempts = steps = 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        session = Session(process, Task(kind, process.version, seed=attempts))
        while not session.done:
            session.step(Action(chance.choice(actions)))
        attempts += 1
        steps += session.turns
    took = time.perf_counter() - began
    process.close()
    note = f"{took / attempts * 1000:.1f} ms an attempt, {steps / attempts:.1f} steps"
    return Row("kinds", kind, attempts / took * 3600, "attempts/h", note=note)

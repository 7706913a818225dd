"""``lightning-trainer environments try``: one attempt by hand."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from lightning_trainer.cli.terminal.console import TerminalConsole
from lightning_trainer.environments.limits import environment_settings, limits_of
from lightning_trainer.environments.protocol import (
    HELD_OUT,
    TRAIN,
    Action,
    Observation,
    Task,
    ToolCall,
    nothing_held_out,
)
from lightning_trainer.environments.registry import EnvironmentSpec, check_file_task, launch_of
from lightning_trainer.environments.session import Session
from lightning_trainer.environments.worker.pool import EnvironmentPool
from lightning_trainer.errors import ConfigError
from lightning_trainer.rollouts.task_file import read_tasks


@dataclass(frozen=True, slots=True)
class Trial:
    """The arguments of ``lightning-trainer environments try``: all of ``say`` is done before ``call``."""

    environment: str
    say: tuple[str, ...]
    call: tuple[str, ...]
    seed: int
    held_out: bool
    tasks: Path | None


def try_environment(trial: Trial, *, config: Path | None, folder: Path | None) -> None:
    """Play one attempt, and print every observation and reward.

    Raises:
        LightningError: there is no such environment, it reads no tasks from a file, or it failed.
    """
    named = None if trial.tasks is None else read_tasks(trial.tasks).tasks[0]
    if named is not None:
        check_file_task(trial.environment, named.id)
    actions = [*map(Action, trial.say), *map(_called, trial.call)]
    settings = environment_settings(config, folder)
    launch = launch_of(EnvironmentSpec.parse(trial.environment), settings.folder)
    console = TerminalConsole()
    began = time.perf_counter()
    with EnvironmentPool(launch, limits_of(settings), size=1) as pool, pool.lease() as process:
        split = HELD_OUT if trial.held_out else TRAIN
        task = Task(trial.environment, pool.version, split, trial.seed)
        if named is not None:
            task = Task(trial.environment, pool.version, name=named.id, fields=named.fields)
        sizes = "" if pool.sizes is None else "; tasks: " + ", ".join(f"{n} {name}" for name, n in pool.sizes.items())
        _line(console, f"task {task.id} (Python {process.python}, started in {_since(began)}{sizes})")
        if named is None and not pool.holds_out:
            _line(console, nothing_held_out(trial.environment))
        began = time.perf_counter()
        session = Session(process, task)
        _show(console, session.observation, f"reset in {_since(began)}")
        for action in actions:
            if session.done:
                break
            began = time.perf_counter()
            observation = session.step(action)
            reward = session.rewards[-1]
            earned = "no reward" if reward is None else f"reward {reward:g}"
            so_far = "".join(f", {name} {value:g} so far" for name, value in session.named_rewards.items())
            _show(console, observation, f"{earned}{so_far}{', done' if session.done else ''}, in {_since(began)}")


def _called(text: str) -> Action:
    name, _, arguments = text.partition(" ")
    try:
        parsed = json.loads(arguments or "{}")
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise ConfigError(f"--call {text!r}: after the tool's name write its arguments as a JSON object")
    return Action(tool_calls=(ToolCall(name, parsed, "call"),))


def _show(console: Console, observation: Observation, words: str) -> None:
    if observation.instructions:
        _line(console, f"instructions: {observation.instructions}")
    for tool in observation.tools or ():
        _line(console, f"tool {tool.name}: {tool.description} {json.dumps(tool.parameters.get('properties', {}))}")
    for result in observation.tool_results:
        _line(console, f"result: {result.text}")
    if observation.text:
        _line(console, observation.text)
    _line(console, f"-- {words}", style="dim")


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _since(began: float) -> str:
    seconds = time.perf_counter() - began
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"

"""``lightning-trainer rollouts --environment NAME``: attempts that an environment answers and scores."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_instrumentation.settings import checked_endpoint

from lightning_trainer.cli.rollouts import (
    Options,
    Show,
    check_purpose,
    curriculum_of,
    ends_at_signals,
    epochs_of,
    placed,
    print_summary,
    shown,
    try_each,
)
from lightning_trainer.cli.terminal.console import TerminalConsole
from lightning_trainer.environments.limits import environment_settings, limits_of
from lightning_trainer.environments.protocol import Task
from lightning_trainer.environments.registry import check_file_task
from lightning_trainer.errors import ConfigError
from lightning_trainer.rollouts.command import Command
from lightning_trainer.rollouts.curriculum import Curriculum
from lightning_trainer.rollouts.daemon_client import DaemonClient
from lightning_trainer.rollouts.environment.program_agent import ProgramAgent
from lightning_trainer.rollouts.environment.runner import EnvironmentRunner
from lightning_trainer.rollouts.run_name import command_label
from lightning_trainer.rollouts.task_file import FileTask, TaskFile, read_tasks


@dataclass(frozen=True, slots=True)
class Play:
    """What ``--environment`` adds to the options of rollouts."""

    environment: str
    count: int
    max_turns: int
    max_tokens: int
    temperature: float
    instructions: str | None
    history: int | None
    images: bool
    folder: Path | None = None
    """Folder of the interpreters, in place of the configuration's."""


def play(options: Options, play: Play) -> None:
    """Play until the steps are done, or every task has been tried as often as it should be.

    Raises:
        ConfigError: the options do not go together, the environment reads no tasks from a file, a task lacks the
            curriculum's field, or there is no such command.
        LightningError: the tasks cannot be read, the environment does not start, the daemon cannot be reached, or
            training has stopped.
    """
    check_purpose(options)
    if options.curriculum is not None and options.tasks is None:
        raise ConfigError(
            "--curriculum tells tasks of --tasks apart by a field, and an environment's own tasks have none: leave it "
            "out, or choose in your own program (lightning_trainer.rollouts.Curriculum)"
        )
    from_file = None if options.tasks is None else read_tasks(options.tasks)
    if from_file is not None:
        check_file_task(play.environment, from_file.tasks[0].id)
    if options.command and shutil.which(options.command[0]) is None:
        raise ConfigError(f"there is no command {options.command[0]!r} on PATH; check its spelling, or give its path")
    options = placed(options)
    if options.policy is None:
        raise ConfigError(
            "an environment is played with a policy's model: name it with --policy NAME, or the daemon's configuration "
            "with --config FILE"
        )
    endpoint = checked_endpoint(options.endpoint)
    program = None
    if options.command:
        # The agent's name goes into the program's environment, not into this process's.
        command = Command(options.command, endpoint=endpoint, agent=options.agent, timeout_s=options.timeout_s)
        program = ProgramAgent(command)
    try:
        with ends_at_signals():
            if options.steps is None:
                _try_each(options, play, endpoint, program, from_file)
            else:
                _train(options, play, endpoint, program, from_file)
    finally:
        if program is not None:
            program.stop()


def _train(
    options: Options, play: Play, endpoint: str, program: ProgramAgent | None, from_file: TaskFile | None
) -> None:
    assert options.steps is not None
    assert options.policy is not None
    console = TerminalConsole()
    curriculum = None if from_file is None else curriculum_of(options, from_file.tasks)
    status = DaemonClient(endpoint, options.policy, token=os.environ.get("LIGHTNING_TOKEN")).policy()
    if status["steps_done"] >= options.steps:
        console.print(f"{status['steps_done']} steps are done already; --steps is their total")
        return
    attempts = status["groups_per_step"] * status["group_size"]
    with (
        shown(console, options.steps, attempts) as show,
        _runner(options, play, endpoint, program, from_file, show, curriculum) as runner,
    ):
        show.steps_done = status["steps_done"]
        order = None
        if from_file is not None:
            epochs = epochs_of(options, from_file.tasks, status["groups_per_step"])
            order = lambda step: _named(runner, epochs(step, run=runner.run_number))  # noqa: E731
        runner.train(order, steps=options.steps)


def _try_each(
    options: Options, play: Play, endpoint: str, program: ProgramAgent | None, from_file: TaskFile | None
) -> None:
    console = TerminalConsole()
    held_out = options.evaluate is not None and from_file is None
    count = play.count if from_file is None else len(from_file.tasks)
    attempts = count * (options.record or 1)
    with shown(console, 1, attempts) as show, _runner(options, play, endpoint, program, from_file, show) as runner:
        if from_file is not None:
            tasks = _named(runner, from_file.tasks)
        elif held_out:
            tasks = runner.environment.held_out_tasks(count)
        else:
            tasks = runner.environment.training_tasks(1, count)
        ended = try_each(runner, tasks, options)
    print_summary(console, options, ended)
    if held_out and runner.environment.nothing_held_out is not None:
        console.print(runner.environment.nothing_held_out, markup=False, highlight=False)


def _named(runner: EnvironmentRunner, tasks: Sequence[FileTask]) -> list[Task]:
    return [runner.environment.named_task(task.id, task.fields) for task in tasks]


def _runner(
    options: Options,
    play: Play,
    endpoint: str,
    program: ProgramAgent | None,
    from_file: TaskFile | None,
    show: Show,
    curriculum: Curriculum[Task] | None = None,
) -> EnvironmentRunner:
    assert options.policy is not None
    settings = environment_settings(options.config, play.folder)
    source = from_file.label if from_file is not None else "seeds"
    label = command_label(options.command, play.environment, source, options.seed) if options.command else None
    return EnvironmentRunner(
        play.environment,
        policy=options.policy,
        agent=program,
        agent_options={
            "name": options.agent,
            "max_turns": play.max_turns,
            "max_tokens": play.max_tokens,
            "temperature": play.temperature,
            "instructions": play.instructions,
            "history": play.history,
            "images": play.images,
        },
        label=label or f"{play.environment}:{source}:{options.seed}",
        endpoint=endpoint,
        concurrency=options.concurrency,
        timeout_s=options.timeout_s,
        seed=options.seed,
        limits=limits_of(settings),
        folder=settings.folder,
        run=options.run,
        retries=options.retries,
        on_event=show,
        curriculum=curriculum,
    )

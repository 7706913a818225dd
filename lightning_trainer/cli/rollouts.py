"""``lightning-trainer rollouts -- python agent.py``: run a program over tasks in a file, for training or evaluation."""

import json
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightning_instrumentation.settings import checked_endpoint
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from lightning_trainer.cli.daemon.running_daemon import url_for_others, visible_daemon
from lightning_trainer.cli.other_languages import unanswered
from lightning_trainer.cli.terminal.console import TerminalConsole
from lightning_trainer.config import Config
from lightning_trainer.config.file import load_config
from lightning_trainer.daemon.access.token import token_for_clients
from lightning_trainer.environments.task_fields import field_of
from lightning_trainer.errors import ConfigError, EvaluationError
from lightning_trainer.rollouts import AttemptEnded, Command, Curriculum, Event, Runner, StepEnded
from lightning_trainer.rollouts.attempt import TaskT
from lightning_trainer.rollouts.daemon_client import DaemonClient, policy_of
from lightning_trainer.rollouts.run_name import command_label
from lightning_trainer.rollouts.step_runner import StepRunner
from lightning_trainer.rollouts.task_file import Epochs, FileTask, read_tasks

_GRACE_S = 30.0
"""Seconds after the command's own time limit at which its thread is given up."""
_CANDIDATES = 4
"""Number of tasks from which a curriculum chooses one."""
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments of ``lightning-trainer rollouts``."""

    command: tuple[str, ...]
    tasks: Path | None
    policy: str | None
    """None: no policy answers the attempts, which are recorded nevertheless."""
    steps: int | None
    evaluate: str | None
    endpoint: str | None
    agent: str | None
    concurrency: int
    timeout_s: float
    retries: int
    seed: int
    run: str | None = None
    config: Path | None = None
    curriculum: str | None = None
    """Field that says what kind a task is; may be nested, as in ``extra_info.level``."""
    record: int | None = None
    """Attempts at each task, for a dataset."""
    journal: Path | None = None
    """File from which an interrupted evaluation continues."""


def rollouts(options: Options) -> None:
    """Run until the steps are done, or every task has been tried as often as it should be.

    Raises:
        ConfigError: the options do not go together, or the command does not exist.
        LightningError: the tasks cannot be used, the daemon cannot be reached, or training has stopped.
    """
    check_purpose(options)
    if not options.command:
        raise ConfigError("name the program after `--`, as in: rollouts ... -- python agent.py; or use --environment")
    if shutil.which(options.command[0]) is None:
        raise ConfigError(f"there is no command {options.command[0]!r} on PATH; check its spelling, or give its path")
    options = placed(options)
    if options.steps is not None and options.policy is None:
        raise ConfigError(
            "--steps trains a policy: name it with --policy NAME, or the daemon's configuration with --config FILE; "
            "--evaluate NAME and --record N need none"
        )
    endpoint = checked_endpoint(options.endpoint)
    if options.tasks is None:
        raise ConfigError("name the tasks with --tasks FILE, or the environment that they come from with --environment")
    from_file = read_tasks(options.tasks)
    tasks = from_file.tasks
    # The agent's name goes into the program's environment, not into this process's.
    command = Command(options.command, endpoint=endpoint, agent=options.agent, timeout_s=options.timeout_s)
    # Other tasks, or the same ones in another order, are another run: two files may have the same ids of tasks.
    command.run_label = command_label(options.command, from_file.label, options.seed)
    console = TerminalConsole()
    if said := unanswered({**os.environ, "LIGHTNING_ENDPOINT": endpoint}, options.command[0]):
        console.print(said, style="yellow", markup=False, highlight=False, soft_wrap=True)
    with ends_at_signals():
        if options.steps is None:
            _try_each(options, endpoint, command, tasks, console)
        else:
            _train(options, endpoint, command, tasks, console)


@contextmanager
def ends_at_signals() -> Iterator[None]:
    """End as at Ctrl-C when someone ends this process or closes its terminal; otherwise the programs that it started
    would continue without it."""

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    # Windows has no SIGHUP.
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # nohup wants it to continue without a terminal
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def check_purpose(options: Options) -> None:
    """Check that the options give the attempts one purpose, and that the others fit it.

    Raises:
        ConfigError: they give no purpose, or several; a curriculum without training, or a journal without an
            evaluation; or a version of a policy, which is not trained, and which a program would not heed.
    """
    purposes = (options.steps, options.evaluate, options.record)
    if sum(purpose is not None for purpose in purposes) != 1 or options.evaluate == "":
        raise ConfigError(
            "say what the rollouts are for: --steps N to train, --evaluate NAME, or --record N to make a dataset"
        )
    if options.curriculum is not None and options.steps is None:
        raise ConfigError("--curriculum chooses tasks to train on; --evaluate and --record try every task")
    if options.journal is not None and options.evaluate is None:
        raise ConfigError(
            "--journal keeps what --evaluate has done; --steps and --record go on without it: leave it out"
        )
    if options.policy is None or (policy := policy_of(options.policy)) == options.policy:
        return
    if options.steps is not None:
        raise ConfigError(
            f"--policy {options.policy} is a version of a policy, which is evaluated and never trained: name the "
            f"policy, {policy!r}, or --evaluate NAME"
        )
    if options.command:
        raise ConfigError(
            f"a program chooses its model itself: have the program ask for the model {options.policy!r}, and name the "
            f"policy with --policy {policy}"
        )


def placed(options: Options) -> Options:
    """Fill in what the configuration says: where the daemon is, its token, and the policy if there is one."""
    if options.config is None:
        return options
    options, config = at_daemon(options, options.config)
    policy = options.policy
    if config.policy or policy:  # a daemon that only records has none
        policy = policy or config.named_policy(None).name
        config.named_policy(policy_of(policy))
    return replace(options, policy=policy)


def at_daemon(options: Options, path: Path) -> tuple[Options, Config]:
    """Fill in where a configuration's daemon is, and leave its token to programs; also return the configuration."""
    config = load_config(path)
    endpoint = options.endpoint or visible_daemon(config)
    token = token_for_clients(config.daemon, endpoint)
    if token is not None:
        os.environ.setdefault("LIGHTNING_TOKEN", token)  # the programs need it too
    if endpoint is None:
        if config.daemon.port == 0:
            raise ConfigError(
                f"no daemon runs on {config.daemon.state_dir}, and port = 0 does not say where one will be: start it "
                f"with: lightning-trainer serve --config {path}"
            )
        endpoint = config.daemon.url()
    if options.endpoint is None and config.daemon.tls_cert is not None:
        endpoint = url_for_others(config)  # the programs' clients look for this name in the certificate
    return replace(options, endpoint=endpoint), config


def _train(options: Options, endpoint: str, command: Command, tasks: Sequence[FileTask], console: Console) -> None:
    assert options.steps is not None
    assert options.policy is not None
    curriculum = curriculum_of(options, tasks)
    status = DaemonClient(endpoint, options.policy, token=os.environ.get("LIGHTNING_TOKEN")).policy()
    order = epochs_of(options, tasks, status["groups_per_step"])
    if status["steps_done"] >= options.steps:
        console.print(f"{status['steps_done']} steps are done already; --steps is their total")
        return
    with shown(console, options.steps, status["groups_per_step"] * status["group_size"]) as show:
        show.steps_done = status["steps_done"]
        runner = _runner(options, endpoint, command, show, curriculum)
        runner.train(lambda step: order(step, run=runner.run_number), steps=options.steps)


def epochs_of(options: Options, tasks: Sequence[FileTask], per_step: int) -> Epochs:
    """Return the tasks of each step, or those that a curriculum chooses them from."""
    more = per_step if options.curriculum is None else min(_CANDIDATES * per_step, max(per_step, len(tasks)))
    return Epochs(tasks, per_step=more, seed=options.seed)


def curriculum_of(options: Options, tasks: Sequence[FileTask]) -> Curriculum[Any] | None:
    """Return the curriculum, if one is asked for: for these tasks, or what is made of them with the same ``fields``.

    Raises:
        ConfigError: a task lacks the field.
    """
    field = options.curriculum
    if field is None:
        return None
    if without := next((task for task in tasks if field_of(task.fields, field, _MISSING) is _MISSING), None):
        raise ConfigError(
            f"task {without.id!r} has no field {field!r}, which --curriculum tells kinds of tasks by; "
            "give every task one"
        )
    return Curriculum(lambda task: json.dumps(field_of(task.fields, field), sort_keys=True), seed=options.seed)


def _try_each(options: Options, endpoint: str, command: Command, tasks: Sequence[FileTask], console: Console) -> None:
    with shown(console, 1, len(tasks) * (options.record or 1)) as show:
        ended = try_each(_runner(options, endpoint, command, show), tasks, options)
    print_summary(console, options, ended)


def try_each(runner: StepRunner[TaskT], tasks: Sequence[TaskT], options: Options) -> list[AttemptEnded]:
    """Try every task as often as the options say: once in an evaluation."""
    if options.record is not None:
        return runner.record(tasks, attempts=options.record)
    assert options.evaluate is not None
    return runner.evaluate(tasks, stage=options.evaluate, journal=options.journal)


def print_summary(console: Console, options: Options, ended: Sequence[AttemptEnded]) -> None:
    """Print the mean reward, over the attempts that have one, and how many attempts failed.

    Raises:
        EvaluationError: every attempt failed, so nothing was evaluated.
    """
    stage, things = (options.evaluate, "tasks") if options.record is None else ("recorded", "attempts")
    rewards = [attempt.reward for attempt in ended if attempt.reward is not None]
    mean = f"mean reward {sum(rewards) / len(rewards):.3f}" if rewards else "no reward was given"
    failed = sum(attempt.error is not None for attempt in ended)
    console.print(
        f"{stage}: {mean} over {len(rewards)} of {len(ended)} {things}; {failed} failed",
        markup=False,
        highlight=False,
    )
    if ended and failed == len(ended):
        raise EvaluationError(f"{stage}: every attempt failed; see the errors above")


def _runner(
    options: Options,
    endpoint: str,
    command: Command,
    show: "Show",
    curriculum: Curriculum[Any] | None = None,
) -> Runner[FileTask]:
    return Runner(
        options.policy or (),
        command,
        endpoint=endpoint,
        concurrency=options.concurrency,
        timeout_s=options.timeout_s + _GRACE_S,
        retries=options.retries,
        run=options.run,
        on_event=show,
        curriculum=curriculum,
    )


class Show:
    """A bar for the attempts of the current step, a line for each finished step, and one for each new error."""

    def __init__(self, progress: Progress, steps: int, attempts: int) -> None:
        self._progress = progress
        self._steps = steps
        self.steps_done = 0
        self._task = progress.add_task("", total=attempts)
        self._ended: Counter[str] = Counter()
        self._errors: set[str] = set()

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepEnded):
            self._step(event)
        else:
            self._attempt(event)

    def _attempt(self, event: AttemptEnded) -> None:
        self._ended["attempts"] += event.stage != "retried"
        self._ended["retried"] += event.stage == "retried"
        self._ended["failed"] += event.error is not None and event.stage != "retried"
        if event.error is not None and event.error not in self._errors and len(self._errors) < 20:
            self._errors.add(event.error)
            said = Text.assemble((f"task {event.task_id}:", "yellow"), f" {event.error}")
            self._progress.console.print(said, highlight=False)
        self._progress.update(
            self._task, completed=self._ended["attempts"], description=self._words(self.steps_done + 1)
        )

    def _step(self, event: StepEnded) -> None:
        reward = "no reward" if event.reward_mean is None else f"reward {event.reward_mean:.3f}"
        self._progress.console.print(
            f"step {event.step:>3}  {reward}  rollouts {event.rollout_s:.1f} s  training {event.wait_s:.1f} s  "
            f"serves v{event.live_version}{self._failures()}",
            highlight=False,
        )
        self.steps_done = event.step
        self._ended.clear()
        self._progress.update(self._task, completed=0, description=self._words(event.step + 1))

    def _words(self, step: int) -> str:
        return f"step {min(step, self._steps)} of {self._steps}" if self._steps > 1 else "attempts"

    def _failures(self) -> str:
        words = [f"{self._ended[what]} {what}" for what in ("failed", "retried") if self._ended[what]]
        return f"  ({', '.join(words)})" if words else ""


@contextmanager
def shown(console: Console, steps: int, attempts: int) -> Iterator[Show]:
    """Show the progress of a run: the bar only on a terminal, a line for each finished step everywhere."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield Show(progress, steps, attempts)

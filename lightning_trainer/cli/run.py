"""``lightning-trainer run -- python agent.py``: capture a program that contains no line of our code.

This process becomes the program (``exec``), so exit code, signals and streams are the program's own; on Windows, where
that is not possible, it waits for the program and ends with its exit code. It works with the light client alone and
imports nothing beyond it.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from lightning_instrumentation.errors import ConfigurationError
from lightning_instrumentation.settings import checked_endpoint
from lightning_instrumentation.zero_code.environ import ProgramRollout, read_rollout, with_site, write_rollout

from lightning_trainer.cli import other_languages

_USAGE = """\
usage: lightning-trainer run [OPTIONS] -- COMMAND [ARGUMENT ...]

Run a program with every model call captured, in it and in its Python subprocesses. Nothing in it is changed.
A program in another language is captured at the gateway, where a policy claims its agent: its clients find the
base URL in OPENAI_BASE_URL and ANTHROPIC_BASE_URL.

  --endpoint URL   the daemon (LIGHTNING_ENDPOINT, else http://127.0.0.1:8321)
  --agent NAME     name for calls that no framework and no decorator names
  --task ID        the whole run is one attempt at this task: it begins with the program and ends with it
  --rollout ID     id of that rollout (new unless given); alone, it names the task too
  --group ID       attempts with one group id are compared with each other (the task's id unless given)
  --mode MODE      train (default), evaluate, baseline or record
"""
_HAS_EXEC = sys.platform != "win32"
"""On Windows ``exec`` starts another process and ends this one at once, so a shell continues, with exit code 0."""
_EXIT_USAGE, _EXIT_NOT_EXECUTABLE, _EXIT_NOT_FOUND = 2, 126, 127
_OF_A_ROLLOUT = ("task", "rollout", "group", "mode")
_NAMES = ("endpoint", "agent", *_OF_A_ROLLOUT)


@dataclass(frozen=True, slots=True)
class _Order:
    options: dict[str, str]
    command: list[str]


def main(arguments: Sequence[str]) -> NoReturn:
    """Become the program, or wait for it and end this process; never return."""
    if arguments and arguments[0] in ("--help", "-h"):
        print(_USAGE, end="")
        sys.exit(0)
    try:
        order = _read(arguments)
        environment = _environment(order)
    except ConfigurationError as error:
        _fail(_EXIT_USAGE, str(error))
    try:
        if _HAS_EXEC:
            _become(order.command, environment)
        sys.exit(_wait_for(order.command, environment))
    except FileNotFoundError:
        _fail(
            _EXIT_NOT_FOUND, f"there is no command {order.command[0]!r} on PATH; check its spelling, or give its path"
        )
    except OSError as error:
        _fail(
            _EXIT_NOT_EXECUTABLE, f"{order.command[0]!r} cannot be run ({error.strerror}); run its interpreter with it"
        )


def _read(arguments: Sequence[str]) -> _Order:
    """Parse the arguments. Raises ConfigurationError: an unknown option, one without its value, or no command."""
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        head = rest.pop(0)
        if head == "--":
            break
        name, equals, value = head.removeprefix("--").partition("=")
        if name not in _NAMES or not head.startswith("--"):
            raise ConfigurationError(
                f"run has no option {head!r}; it has {', '.join(f'--{one}' for one in _NAMES)}, and `--` before COMMAND"
            )
        if not equals:
            if not rest or rest[0] == "--":
                raise ConfigurationError(f"--{name} needs a value: --{name} {name.upper()}")
            value = rest.pop(0)
        if not value.strip():
            raise ConfigurationError(f"--{name} is empty; leave it out, or give it a value")
        options[name] = value
    if not rest:
        raise ConfigurationError("there is no command to run; write: lightning-trainer run -- python agent.py")
    return _Order(options, rest)


def _environment(order: _Order) -> dict[str, str]:
    environment = dict(os.environ)
    options = order.options
    if "endpoint" in options:
        environment["LIGHTNING_ENDPOINT"] = options["endpoint"]
    checked_endpoint(environment.get("LIGHTNING_ENDPOINT"))
    if "agent" in options:
        environment["LIGHTNING_AGENT"] = options["agent"]
    environment["PYTHONPATH"] = with_site(environment.get("PYTHONPATH"))
    around = _attempt_around(environment)
    if around is None:
        write_rollout(environment, _rollout(order))
    elif named := [f"--{name}" for name in _OF_A_ROLLOUT if name in options]:
        _say(
            f"{' and '.join(named)} do not count: the program is inside attempt {around.attempt_id} of a runner or of "
            "another `lightning-trainer run`, and belongs to it"
        )
    path = shutil.which(order.command[0])
    if path is not None and other_languages.other_language(path):
        _say(other_languages.lead(environment, order.command[0], options.get("agent")))
    return environment


def _attempt_around(environment: dict[str, str]) -> ProgramRollout | None:
    """Return the attempt, of a runner or another launcher, that this program is started in; None if there is none."""
    try:
        return read_rollout(environment)
    except (ValueError, TypeError):  # written by another program
        return None


def _rollout(order: _Order) -> ProgramRollout | None:
    options = order.options
    task_id = options.get("task") or options.get("rollout")
    mode = options.get("mode", "train")
    if mode not in ("train", "evaluate", "baseline", "record"):
        raise ConfigurationError(f"--mode is {mode!r}; write train, evaluate, baseline or record")
    if task_id is None:
        given = [f"--{name}" for name in ("group", "mode") if name in options]
        if given:
            raise ConfigurationError(f"{' and '.join(given)} says something of a rollout: name it with --task ID")
        return None
    path = shutil.which(order.command[0])
    if path is not None and (not other_languages.is_python(path) or other_languages.other_language(path)):
        raise ConfigurationError(
            f"{order.command[0]!r} is not a Python program, so nothing in it can begin and end the rollout "
            f"{task_id!r}; run the Python program in it with `lightning-trainer run --task`, leave --task out, or use "
            "`lightning-trainer rollouts`, which runs programs in any language"
        )
    attempt_id = uuid.uuid4().hex
    return ProgramRollout(
        pid=os.getpid() if _HAS_EXEC else None,
        task_id=task_id,
        # One id for both: calls made through a rollout's URL do not name an attempt.
        rollout_id=options.get("rollout") or attempt_id,
        attempt_id=attempt_id,
        group_id=options.get("group") or task_id,
        mode=mode,
    )


def _become(command: list[str], environment: dict[str, str]) -> NoReturn:
    """Replace this process with the command. Raises OSError: it cannot be run."""
    # Python ignores these signals, and an ignored signal stays ignored across exec.
    for name in ("SIGPIPE", "SIGXFSZ"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvpe(command[0], command, environment)


def _wait_for(command: list[str], environment: dict[str, str]) -> int:
    """Run the program as another process and return its exit code. Raises OSError: it cannot be run."""
    import subprocess

    # Windows itself looks only for `.exe`, and npm, for example, is a `.cmd`.
    program = subprocess.Popen([shutil.which(command[0]) or command[0], *command[1:]], env=environment)
    while True:
        try:
            return program.wait()
        except KeyboardInterrupt:
            pass  # the console interrupts the program too, which decides what to do


def _say(sentence: str) -> None:
    print(f"lightning-trainer: {sentence}", file=sys.stderr)


def _fail(code: int, sentence: str) -> NoReturn:
    print(f"error: {sentence}", file=sys.stderr)
    sys.exit(code)

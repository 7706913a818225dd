"""An attempt that is a command: any program, in any language, run once per task.

The program reads the task from standard input, as one JSON object. Python programs are captured as with
``lightning-trainer run``; others find this rollout's own base URL in ``LIGHTNING_ROLLOUT_URL``. If the last line of
standard output is JSON, it is the reward: ``0.5``, ``{"reward": 0.5}`` or ``{"rewards": {"score": 1, "format": 0}}``.
"""

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import IO, Any
from urllib.parse import quote

import lightning_instrumentation as lt
from lightning_instrumentation.prompts.version import PROMPTS
from lightning_instrumentation.scope import current
from lightning_instrumentation.zero_code.environ import (
    BEGUN,
    ProgramRollout,
    beside_proxy,
    url_settings,
    with_site,
    write_rollout,
)

from lightning_trainer.errors import LightningError
from lightning_trainer.rollouts.awaiting import stopped_with_run
from lightning_trainer.rollouts.run_name import command_label
from lightning_trainer.rollouts.task_file import FileTask

try:
    import fcntl
except ImportError:  # Windows, which has no process groups either
    fcntl = None

_LONGEST_VARIABLE = 120_000
"""In bytes: Linux allows 131,072 for one variable, its name included (``MAX_ARG_STRLEN``)."""
_LONGEST_OUTPUT = 1 << 20
"""How many bytes are read from the end of standard output, and of standard error."""


class CommandError(LightningError):
    """The program failed; the message has its exit status and its last line of errors."""


class Command:
    """An attempt that runs a program: ``Runner(policy, Command(["python", "agent.py"]))``.

    Args:
        command: program and arguments; they do not go through a shell.
        endpoint: the daemon's URL.
        agent: the agent's name if nothing in the program sets one.
        timeout_s: limit after which the program is killed with everything that it has started. The end of the run kills
            it in the same way.

    Raises:
        LightningError: this is Windows.
    """

    def __init__(
        self, command: Sequence[str], *, endpoint: str, agent: str | None = None, timeout_s: float = 120.0
    ) -> None:
        if fcntl is None:
            raise LightningError(
                f"the command {list(command)} needs Linux or macOS to run as an attempt; give a function instead, or "
                "run it in WSL"
            )
        self._command = list(command)
        self.run_label = command_label(command)
        self._endpoint = endpoint.rstrip("/")
        self._agent = agent
        self._timeout_s = timeout_s

    def __call__(self, task: FileTask) -> float | None:
        """Run the program for the current rollout, and return the reward that it printed.

        Raises:
            CommandError: the program ended with a status other than 0, or printed something that is not a reward.
            TimeoutError: it took too long.
            OSError: it cannot be run.
        """
        return _reward(self.run(task))

    def run(self, task: FileTask) -> str:
        """Run the program for the current rollout, and return the last line that it printed, whatever it says.

        Raises:
            CommandError: the program ended with a status other than 0.
            TimeoutError: it took too long.
            OSError: it cannot be run.
        """
        # With pipes instead of files, processes that the program leaves running could hold us up by keeping them open.
        with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            assert fcntl is not None
            for file in (output, errors):  # a shell's `> /dev/stdout` opens the file once more, at its beginning
                fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND)
            asked.write(json.dumps(dict(task.fields)).encode())
            asked.seek(0)
            self._run(self._environment(task), asked, output, errors)
            return _last_line(output)

    def _run(self, environment: Mapping[str, str], asked: IO[bytes], output: IO[bytes], errors: IO[bytes]) -> None:
        process = subprocess.Popen(
            self._command,
            stdin=asked,
            stdout=output,
            stderr=errors,
            env=environment,
            start_new_session=True,  # so that everything it starts can be killed with it
        )
        with process, stopped_with_run(partial(_kill, process)):
            try:
                process.wait(self._timeout_s)
            except subprocess.TimeoutExpired:
                raise TimeoutError(f"the command did not end within {self._timeout_s:g} s") from None
            finally:
                _kill(process)
        if process.returncode:
            raise CommandError(f"exit status {process.returncode}: {_last_line(errors) or 'it said nothing'}")

    def _environment(self, task: FileTask) -> dict[str, str]:
        environment = {**os.environ, **beside_proxy(os.environ, self._endpoint)}
        environment |= {"LIGHTNING_ENDPOINT": self._endpoint, "LIGHTNING_TASK_ID": task.id}
        if self._agent is not None:
            environment["LIGHTNING_AGENT"] = self._agent
        environment["PYTHONPATH"] = with_site(environment.get("PYTHONPATH"))
        if prompts := current().prompts:
            environment[PROMPTS] = _as_variable({name: asdict(version) for name, version in prompts.items()})
        identity = current().identity
        if identity is None or identity.attempt_id is None:
            write_rollout(environment, None)
            return environment
        task_id = identity.task_id or task.id
        rollout = ProgramRollout(
            pid=os.getpid(),  # this process begins and ends the rollout; the program only belongs to it
            task_id=task_id,
            rollout_id=identity.rollout_id,
            attempt_id=identity.attempt_id,
            group_id=identity.group_id or task_id,
            mode=identity.mode or "train",
        )
        write_rollout(environment, rollout)
        environment[BEGUN] = "1"
        agent = f"/agents/{quote(self._agent, safe='')}" if self._agent is not None else ""
        named = quote(identity.rollout_id, safe="")
        environment["LIGHTNING_ROLLOUT_URL"] = f"{self._endpoint}/rollouts/{named}{agent}{url_settings(environment)}/v1"
        return environment


def _as_variable(prompts: Mapping[str, Any]) -> str:
    """Return prompts as the value of a variable in a program's environment.

    Raises:
        CommandError: they are too long for it.
    """
    text = json.dumps(prompts, ensure_ascii=False)
    size = len(text.encode(errors="surrogatepass"))
    if size > _LONGEST_VARIABLE:
        raise CommandError(
            f"the texts of {', '.join(prompts)} take {size:,} bytes, and a program's environment holds "
            f"{_LONGEST_VARIABLE:,} of them: make the attempt a function, or the texts shorter"
        )
    return text


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the program's process group and, if the program is alive, all that it started in other groups: nothing
    outlives the attempt."""
    elsewhere = _descendants(process.pid) if process.poll() is None else []
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for pid in elsewhere:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    """Return the processes below this one; none if psutil is missing, which the client alone does not install."""
    try:
        import psutil
    except ImportError:
        return []
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


def _last_line(output: IO[bytes]) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _LONGEST_OUTPUT))
    lines = output.read().decode(errors="replace").rstrip().splitlines()
    return lines[-1].strip() if lines else ""


def _reward(line: str) -> float | None:
    """Record the line's named rewards and return the one without a name; None if the line does not have one."""
    try:
        said: Any = json.loads(line)
    except ValueError:
        return None
    if not isinstance(said, dict):
        return _number(said, line)
    rewards = said.get("rewards", {})
    if not isinstance(rewards, Mapping):
        raise CommandError(
            f'the rewards are not an object but {rewards!r}; print one, as in {{"rewards": {{"score": 1}}}}'
        )
    for name, value in rewards.items():
        number = _number(value, line)
        if number is not None:
            lt.reward(number, name)
    return _number(said.get("reward"), line)


def _number(value: Any, line: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CommandError(f"the last line of the command's output is {line[:200]!r}; a reward in it must be a number")
    return float(value)

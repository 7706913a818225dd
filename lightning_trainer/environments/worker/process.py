"""A process with an environment's own interpreter, called over pipes; every answer has a time and a length limit.

Nothing is unpickled: an answer is one line of JSON, validated field by field. A process that has failed is killed with
everything it started.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from lightning_trainer.environments.errors import (
    EnvironmentDiedError,
    EnvironmentFailedError,
    EnvironmentNonsenseError,
    EnvironmentOutOfMemoryError,
    EnvironmentRaisedError,
    EnvironmentTimeoutError,
)
from lightning_trainer.environments.limits import Limits
from lightning_trainer.environments.memory import resident_bytes
from lightning_trainer.environments.protocol import (
    Action,
    Observation,
    Step,
    Task,
    observation_from_json,
    step_from_json,
    to_json,
)

_GUEST = Path(__file__).with_name("guest.py")
_KEPT_OF_STDERR = 8192
_LOOK_AT_MEMORY_S = 0.5
_CLOSE_S = 5.0
_PASSED_ON = ("HOME", "LANG", "LC_ALL", "PATH", "TZ", "USER", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "XDG_CACHE_HOME")
"""Environment variables that an environment gets; keys and tokens are not among them."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Launch:
    """How a process of an environment is started."""

    label: str
    """The environment's name in messages."""
    python: str
    module: str
    """An importable module, or the path of a file."""
    attribute: str
    isolated: bool = True
    """Whether the process sees only its own interpreter's packages, without ``PYTHONPATH`` and the current folder."""
    variant: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    path: tuple[str, ...] = ()
    reset_timeout_s: float = 0.0
    """A minimum; ``Limits`` may allow more."""
    step_timeout_s: float = 0.0
    """The same for a step."""
    digest: str = ""
    """The environment's default version."""


class EnvironmentProcess:
    """One environment in one process; not thread-safe.

    Raises:
        EnvironmentFailedError: the process does not start; the message says why.
    """

    def __init__(self, launch: Launch, limits: Limits) -> None:
        self._label = launch.label
        self._limits = replace(
            limits,
            reset_timeout_s=max(limits.reset_timeout_s, launch.reset_timeout_s),
            step_timeout_s=max(limits.step_timeout_s, launch.step_timeout_s),
        )
        self._read = b""
        self._stderr = b""
        self._steps = 0
        self._looked_ns = 0
        self._closed = False
        self._closing = threading.Lock()
        self._folder = tempfile.mkdtemp(prefix="lightning-environment-")
        self._process, self._parent_pipe = self._started(launch)
        self._poll = select.poll()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._in, self._out, self._err = (
            stream.fileno() for stream in (self._process.stdin, self._process.stdout, self._process.stderr)
        )
        for descriptor in (self._in, self._out, self._err):
            os.set_blocking(descriptor, False)
        self._poll.register(self._out, select.POLLIN)
        self._poll.register(self._err, select.POLLIN)
        try:
            opened = self._asked({"open": True}, limits.start_timeout_s, "start")
        except BaseException:
            self.kill()
            raise
        self.version = str(opened.get("version") or "0")
        self.sizes: dict[str, int] | None = opened.get("sizes")
        self.holds_out = bool(opened.get("holds_out", True))
        self.python = str(opened.get("python"))

    @property
    def pid(self) -> int:
        """Return the process's id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self._ended() is None

    def reset(self, task: Task) -> Observation:
        """Reset to a task.

        Raises:
            EnvironmentFailedError: it failed; the process is gone, or will create the environment again.
        """
        self._steps = 0
        return self._checked(observation_from_json, {"reset": to_json(task)}, self._limits.reset_timeout_s, "reset")

    def step(self, action: Action) -> Step:
        """Take one step.

        Raises:
            EnvironmentFailedError: it failed; the process is gone, or will create the environment again.
        """
        self._steps += 1
        what = f"step {self._steps}"
        return self._checked(step_from_json, {"step": to_json(action)}, self._limits.step_timeout_s, what)

    def close(self) -> None:
        """Close the environment, for which it has a few seconds, and kill the process; call this only between steps."""
        try:
            if self.alive:
                self._asked({"close": True}, _CLOSE_S, "close")
        except EnvironmentFailedError as error:
            _log.warning("%s", error)
        self.kill()

    def kill(self) -> None:
        """Kill the process and everything it started, whatever it is doing."""
        with self._closing:
            closed, self._closed = self._closed, True
        if closed:
            return
        self._kill_all()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        os.close(self._parent_pipe)
        shutil.rmtree(self._folder, ignore_errors=True)

    def abandon(self) -> None:
        """Kill the process while another thread may be using it: that thread's call fails, and it closes the pipes."""
        with self._closing:  # until ``kill`` has waited for the process, its id cannot be reused
            if not self._closed:
                self._kill_all()

    def _kill_all(self) -> None:
        if self._process.returncode is not None:  # it was waited for, so its id may be another process's by now
            return
        descendants: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            descendants = psutil.Process(self.pid).children(recursive=True)  # including those that left its group
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        for descendant in descendants:
            with contextlib.suppress(psutil.Error):
                descendant.kill()

    def _started(self, launch: Launch) -> tuple[subprocess.Popen[bytes], int]:
        ours, theirs = -1, -1
        try:
            theirs, ours = os.pipe()
            start = {
                "parent_pipe": theirs,
                "memory_mib": self._limits.memory_mib,
                "module": launch.module,
                "attribute": launch.attribute,
                "variant": launch.variant,
                "options": dict(launch.options),
                "path": list(launch.path),
                "digest": launch.digest,
            }
            environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
            # Sixty-four environments on two cores must not start sixty-four times as many threads.
            environment |= {"TMPDIR": self._folder, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            if not launch.isolated and "PYTHONPATH" in os.environ:
                environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
            process = subprocess.Popen(
                # -P: modules in the folder of guest.py must not be importable by their bare names.
                [launch.python, "-I" if launch.isolated else "-P", str(_GUEST), json.dumps(start)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=self._folder if launch.isolated else None,
                env=environment,
                pass_fds=(theirs,),
                start_new_session=True,
            )
            return process, ours
        except OSError as error:
            if ours >= 0:
                os.close(ours)
            shutil.rmtree(self._folder, ignore_errors=True)
            raise EnvironmentDiedError(
                f"the environment {self._label} cannot be started: {launch.python}: {error}"
            ) from None
        finally:
            if theirs >= 0:
                os.close(theirs)

    def _checked(self, reader: Any, question: dict[str, Any], timeout_s: float, what: str) -> Any:
        answer = self._asked(question, timeout_s, what)
        try:
            return reader(answer)
        except EnvironmentNonsenseError as error:
            self.kill()
            raise EnvironmentNonsenseError(f"the environment {self._label}, {what}: {error}") from None

    def _asked(self, question: dict[str, Any], timeout_s: float, what: str) -> dict[str, Any]:
        """Return the answer; after any failure except an exception in the environment, the process is gone."""
        if not self.alive:
            raise self._died(what)
        sent = json.dumps(question).encode() + b"\n"
        try:
            if len(sent) > self._limits.message_kib << 10:
                raise EnvironmentNonsenseError(
                    f"the environment {self._label} was not asked for {what}: the action has {len(sent) >> 10} KiB and "
                    f"message_kib is {self._limits.message_kib}"
                )
            line = self._exchanged(sent, timeout_s, what)
            try:
                answer = json.loads(line)
            except (ValueError, RecursionError):
                answer = None
            if not isinstance(answer, dict):
                shown = line[:120].decode(errors="replace")
                raise EnvironmentNonsenseError(
                    f"the environment {self._label} answered {what} with {shown!r}, which is not a JSON object"
                )
            self._look_at_memory(what)
            if answer.get("failed") == "memory":
                raise self._out_of_memory(what, f"its limit of {self._limits.memory_mib} MiB")
        except BaseException:
            self.kill()
            raise
        if (failed := answer.get("failed")) is not None:
            message = f"the environment {self._label} failed in {what}: {answer.get('message')}"
            if failed == "raised":
                raise EnvironmentRaisedError(message)
            self.kill()
            raise EnvironmentNonsenseError(message)
        return answer

    def _exchanged(self, sent: bytes, timeout_s: float, what: str) -> bytes:
        give_up = time.monotonic() + timeout_s
        limit = self._limits.message_kib << 10
        left = memoryview(sent)
        left = left[self._written(left, what) :]
        if left:
            self._poll.register(self._in, select.POLLOUT)
        try:
            while True:
                now = time.monotonic()
                if now >= give_up:
                    raise EnvironmentTimeoutError(
                        f"the environment {self._label} did not answer {what} within {timeout_s:g} s; it was killed"
                    )
                for descriptor, _ in self._poll.poll(1000 * min(give_up - now, _LOOK_AT_MEMORY_S)):
                    if descriptor == self._in:
                        left = left[self._written(left, what) :]
                        if not left:
                            self._poll.unregister(self._in)
                    elif descriptor == self._err:
                        self._hear_stderr()
                    elif (line := self._heard(limit, what)) is not None:
                        return line
                self._look_at_memory(what)
        finally:
            if left:
                with contextlib.suppress(KeyError, OSError):
                    self._poll.unregister(self._in)

    def _written(self, left: memoryview, what: str) -> int:
        try:
            return os.write(self._in, left)
        except BlockingIOError:
            return 0
        except (BrokenPipeError, OSError):
            raise self._died(what) from None

    def _heard(self, limit: int, what: str) -> bytes | None:
        """Return a complete line, if there is one now."""
        try:
            piece = os.read(self._out, 1 << 18)
        except BlockingIOError:
            return None
        if not piece:
            raise self._died(what)
        self._read += piece
        line, newline, rest = self._read.partition(b"\n")
        if len(line) > limit:
            raise EnvironmentNonsenseError(
                f"the environment {self._label} answered {what} with more than {limit >> 10} KiB; raise message_kib, "
                "or let it say less"
            )
        if not newline:
            return None
        if rest:
            raise EnvironmentNonsenseError(f"the environment {self._label} answered {what} with more than one line")
        self._read = b""
        return line

    def _hear_stderr(self) -> None:
        try:
            piece = os.read(self._err, 1 << 16)
        except BlockingIOError:
            return
        if not piece:
            with contextlib.suppress(KeyError):
                self._poll.unregister(self._err)
        self._stderr = (self._stderr + piece)[-_KEPT_OF_STDERR:]

    def _look_at_memory(self, what: str) -> None:
        """Check the memory now and then, because a check may cost more than a step."""
        now = time.monotonic_ns()
        if now - self._looked_ns < _LOOK_AT_MEMORY_S * 1e9:
            return
        self._looked_ns = now
        held = resident_bytes(self.pid)
        if held > self._limits.memory_mib << 20:
            raise self._out_of_memory(what, f"{held >> 20} MiB, and memory_mib is {self._limits.memory_mib}")

    def _out_of_memory(self, what: str, held: str) -> EnvironmentFailedError:
        return EnvironmentOutOfMemoryError(f"the environment {self._label} held {held}, in {what}; it was killed")

    def _died(self, what: str) -> EnvironmentFailedError:
        ended, give_up = self._ended(), time.monotonic() + 1.0
        while ended is None and time.monotonic() < give_up:
            time.sleep(0.01)  # a process's pipe closes shortly before the process is dead
            ended = self._ended()
        with contextlib.suppress(OSError):
            self._hear_stderr()
        how = "closed its output"
        if ended is not None:
            how = f"ended with status {ended}" if ended >= 0 else f"died of {signal.Signals(-ended).name}"
        lines = [line.strip() for line in self._stderr.decode(errors="replace").splitlines() if line.strip()]
        said = f": {lines[-1][:300]}" if lines else ""
        return EnvironmentDiedError(f"the environment {self._label} {how} in {what}{said}")

    def _ended(self) -> int | None:
        """Return the process's exit status, negative for the signal that it died of, or None while it lives. Until
        ``kill`` it stays a zombie, so that its id cannot be reused."""
        if self._closed:
            return -signal.SIGKILL
        if not hasattr(os, "waitid"):
            return self._ended_without_waitid()
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def _ended_without_waitid(self) -> int | None:
        """Return the same on macOS before Python 3.13: only waiting tells the status, so all that the process has
        started is killed first."""
        if self._process.returncode is None:
            with contextlib.suppress(psutil.Error):
                if psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE:
                    return None
            self._kill_all()
        return self._process.wait()

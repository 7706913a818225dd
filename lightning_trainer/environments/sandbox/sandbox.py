"""The sandbox seen from outside: it is started, called with a time limit, watched for memory, killed, and recreated.

The sandbox refuses to run if the isolation cannot be set up: there is no mode without it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import subprocess
import sys
import sysconfig
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from lightning_trainer.environments.errors import EnvironmentFailedError
from lightning_trainer.environments.memory import children_of, resident_bytes

_INMATE = Path(__file__).with_name("inmate.py")
_START_S = 20.0
_END_S = 5.0
_LOOK_S = 0.05
_LONGEST_ANSWER = 1 << 22


class SandboxUnavailableError(EnvironmentFailedError):
    """The machine does not allow the isolation; the message says which part, and what to do."""


@dataclass(frozen=True)
class SandboxLimits:
    """The limits of a sandbox."""

    seconds: float = 5.0
    """Limit for one piece of code."""
    memory_mib: int = 256
    """Limit for one process, and for all of them together."""
    processes: int = 16
    disk_mib: int = 16
    """Limit for its folder, which is in memory."""
    output_kib: int = 16
    """Limit for what one piece of code prints; the rest is cut."""


@dataclass(frozen=True)
class Ran:
    """The result of a piece of code."""

    output: str
    error: str | None
    """The code's exception, or the reason why the code was stopped; None: the code finished."""
    value: Any = None
    """Value of the last expression, if JSON can represent it."""
    lost: bool = False
    """Whether the sandbox was recreated: the code's definitions are gone."""


class Sandbox:
    """A Python interpreter whose variables persist from ``run`` to ``run``; not thread-safe.

    Raises:
        SandboxUnavailableError: the isolation cannot be set up here.
    """

    def __init__(self, limits: SandboxLimits | None = None) -> None:
        self._limits = limits or SandboxLimits()
        self._process = self._started()

    def run(self, code: str, seconds: float = math.inf) -> Ran:
        """Run a piece of code and return its output. It never raises because of the code.

        Args:
            seconds: a limit for this piece that is shorter than the sandbox's.
        """
        if self._process.poll() is not None:
            self._process = self._started()
        why, answer = self._asked(code, min(seconds, self._limits.seconds))
        if answer is None:
            self.restart()
            return Ran("", f"{why}; its variables are gone", lost=True)
        error = answer.get("error")
        if answer.get("threads"):
            self.restart()
            why = "the code left threads behind, which were ended; its variables are gone"
            return Ran(str(answer.get("output", "")), f"{error}; {why}" if error else why, lost=True)
        return Ran(str(answer.get("output", "")), None if error is None else str(error), answer.get("value"))

    def restart(self) -> None:
        """Recreate the sandbox, with nothing in it."""
        self.close()
        self._process = self._started()

    def close(self) -> None:
        """Kill the sandbox: all processes of its namespace end with the first one, and the process outside, which waits
        for that one, then ends by itself.

        If the process outside were killed as well, it would be left to the machine's first process to reap the first
        one of the namespace, and in a container that may happen seconds later or never.
        """
        children: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(self._process.pid).children(recursive=True)
        for child in children:
            with contextlib.suppress(psutil.Error):
                child.kill()
        try:
            self._process.wait(_END_S if children else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        # They end some time after the signal is sent.
        psutil.wait_procs(children, timeout=_END_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if sys.platform == "win32":
            raise SandboxUnavailableError(
                "code cannot be run safely on Windows, so it is not run: the sandbox needs Linux; use WSL"
            )
        prefixes = sorted({os.path.realpath(sys.base_prefix), os.path.realpath(sysconfig.get_path("stdlib"))})
        limits = {name: int(value) for name, value in asdict(self._limits).items()}
        limits["cpu_s"] = 3600  # for its whole life; each piece of code has its own limit
        start = {"prefixes": prefixes, "limits": limits}
        python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
        process = subprocess.Popen(
            [python, "-I", "-S", "-B", str(_INMATE), json.dumps(start)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PATH": "/usr/bin:/bin", "HOME": "/work", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"},
            cwd="/",
        )
        self._process = process
        assert process.stdout is not None
        line = self._line(_START_S, memory=False)[1] or b""
        answer = _object(line) or {}
        if not answer.get("ready"):
            said = answer.get("refused")
            if said is None:
                process.kill()
                assert process.stderr is not None
                said = process.stderr.read()[-300:].decode(errors="replace").strip() or "it said nothing"
            self.close()
            raise SandboxUnavailableError(
                f"code cannot be run safely here, so it is not run: {said}. The sandbox needs Linux, and root or "
                "unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1, or "
                "kernel.apparmor_restrict_unprivileged_userns=0; in a container --privileged, or a seccomp profile "
                "that allows unshare)"
            )
        assert process.stderr is not None
        process.stderr.close()
        return process

    def _asked(self, code: str, seconds: float) -> tuple[str, dict[str, Any] | None]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"code": code}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            return "the code ended its interpreter", None
        why, line = self._line(seconds, memory=True)
        if line is None:
            return why, None
        answer = _object(line)
        return ("the code wrote where it may not", None) if answer is None else ("", answer)

    def _line(self, seconds: float, *, memory: bool) -> tuple[str, bytes | None]:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        give_up = time.monotonic() + seconds
        look_at = time.monotonic() + _LOOK_S
        read = b""
        while not read.endswith(b"\n"):
            now = time.monotonic()
            left = give_up - now
            if left <= 0:
                return f"the code took longer than {seconds:g} s and was stopped", None
            if memory and now >= look_at:  # even while output keeps arriving
                if sum(map(resident_bytes, children_of(self._process.pid))) > self._limits.memory_mib << 20:
                    most = self._limits.memory_mib
                    return f"the code and its processes held more than {most} MiB and were stopped", None
                look_at = time.monotonic() + _LOOK_S
            if select.select([descriptor], [], [], min(left, _LOOK_S))[0]:
                piece = os.read(descriptor, 1 << 16)
                if not piece:
                    return "the code ended its interpreter", None
                read += piece
                if len(read) > _LONGEST_ANSWER:
                    return "the code wrote where it may not", None
        return "", read


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None

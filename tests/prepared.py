"""``lightning-trainer ...`` in processes that have imported what it needs, which is most of the time of a start.

One process imports it and forks for every command; what is forked has arguments, an environment, a folder and streams
of its own, and runs ``python -m lightning_trainer`` from its first line on. How long a start takes, and what it
imports, is for tests that start Python itself.
"""

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import IO, Any

_LONGEST = 2**17
_MODULES = ("cli.app", "cli.daemon.serve", "cli.daemon.status", "cli.daemon.ui", "daemon.service")


class Command:
    """A command that runs, with the part of ``subprocess.Popen`` that tests use."""

    def __init__(self, arguments: tuple[str, ...], told: socket.socket) -> None:
        self.arguments = arguments
        self.returncode: int | None = None
        self._told = told
        self.pid = self._next()

    def poll(self) -> int | None:
        if self.returncode is None:
            self._told.setblocking(False)
            try:
                self.returncode = self._next()
            except BlockingIOError:
                return None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._told.settimeout(timeout)
            try:
                self.returncode = self._next()
            except TimeoutError:
                raise subprocess.TimeoutExpired(self.arguments, timeout or 0) from None
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _next(self) -> int:
        said = self._told.recv(32)
        assert said, f"whatever ran {self.arguments} ended before it"
        return int(said)


class Prepared:
    """The process that has imported all of it."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

    def start(
        self,
        *arguments: str,
        cwd: Path,
        env: Mapping[str, str] = os.environ,
        stdout: IO[Any] | None = None,
        stderr: IO[Any] | None = None,
        first: str = "",
    ) -> Command:
        """Start ``lightning-trainer ARGUMENTS``; what is not given a file is not read. ``first`` is run before it."""
        told, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, open(os.devnull, "r+b") as nothing:
            streams = [nothing.fileno(), *((stream or nothing).fileno() for stream in (stdout, stderr))]
            wanted = json.dumps([arguments, str(cwd), dict(env), first]).encode()
            assert len(wanted) < _LONGEST
            socket.send_fds(self._channel, [wanted], [*streams, theirs.fileno()])
        return Command(arguments, told)

    def run(
        self, *arguments: str, cwd: Path, env: Mapping[str, str] = os.environ, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run ``lightning-trainer ARGUMENTS`` to its end."""
        with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
            command = self.start(*arguments, cwd=cwd, env=env, stdout=stdout, stderr=stderr)
            try:
                status = command.wait(timeout)
            except BaseException:
                command.kill()
                raise
            said = []
            for stream in (stdout, stderr):
                stream.seek(0)
                said.append(stream.read())
            return subprocess.CompletedProcess(arguments, status, *said)

    def close(self) -> None:
        self._channel.close()
        self._process.wait()


def _serve(channel: socket.socket) -> list[str]:
    """Fork for every command until nobody can ask for one; return in the forked process, with its arguments."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whoever waits for a command is not waited for
    while True:
        wanted, passed, _, _ = socket.recv_fds(channel, _LONGEST, 4)
        if not wanted:
            sys.exit()
        if os.fork() == 0:
            channel.close()
            return _fork(wanted, passed)
        for descriptor in passed:
            os.close(descriptor)


def _fork(wanted: bytes, passed: list[int]) -> list[str]:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *streams, told = passed
    child = os.fork()
    if child != 0:
        for descriptor in (*streams, *range(3)):
            os.close(descriptor)
        os.write(told, str(child).encode())
        os.write(told, str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())
        os._exit(0)
    os.close(told)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    arguments, folder, environment, first = json.loads(wanted)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    exec(first, {})
    return arguments


if __name__ == "__main__":
    sys.path[0] = ""  # as with -m
    for module in _MODULES:
        import_module(f"lightning_trainer.{module}")
    assert threading.active_count() == 1, "a fork has no other threads"
    sys.argv[1:] = _serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module("lightning_trainer", run_name="__main__", alter_sys=True)

"""Processes of the benchmarks: started, asked a line at a time, answering in JSON, measured, and stopped by id."""

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import psutil

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
_ENDED = 128 + signal.SIGTERM


class Child:
    """A process ``python -m benchmarks.{module} arguments``, which is killed when the context manager is left."""

    def __init__(
        self,
        module: str,
        *arguments: object,
        python: Path | str = sys.executable,
        environment: Mapping[str, str] | None = None,
        errors: Path | None = None,
    ) -> None:
        """Start it; its standard error goes to the file ``errors``, or to this process's own if that is None."""
        self.module = module
        paths = [str(ROOT / folder) for folder in ("", "instrumentation", "adapters")]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", **(environment or {})}
        self._errors = errors
        log = errors.open("ab") if errors else None
        self.process = subprocess.Popen(
            [str(python), "-m", f"benchmarks.{module}", *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environ,
            cwd=ROOT,
            text=True,
        )
        if log is not None:
            log.close()
        self._seen = psutil.Process(self.process.pid)

    @property
    def pid(self) -> int:
        return self.process.pid

    def read(self) -> Any:
        """Return the next line that it prints, read as JSON.

        Raises:
            RuntimeError: it ended instead; the message has the end of its standard error.
        """
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            said = self._errors.read_text(errors="replace")[-1500:] if self._errors else "see above"
            raise RuntimeError(f"benchmarks.{self.module} ended with {self.process.wait()}: {said}")
        return json.loads(line)

    def lines(self) -> list[str]:
        """Return all lines that it prints until it ends."""
        assert self.process.stdout is not None
        printed = self.process.stdout.read().splitlines()
        self.process.wait()
        return printed

    def ask(self, *words: object) -> Any:
        """Send a line and return the answer."""
        assert self.process.stdin is not None
        print(*words, file=self.process.stdin, flush=True)
        return self.read()

    def cpu_s(self) -> float:
        """Return CPU-seconds of all its threads so far."""
        used = self._seen.cpu_times()
        return used.user + used.system

    def rss_mib(self) -> float:
        return self._seen.memory_info().rss / 2**20

    def peak_mib(self) -> float:
        return _status_mib(self.pid, "VmHWM")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Terminate it, and kill it if it has not ended after ten seconds."""
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._close()

    def _close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        if self.process.poll() is None:
            self.kill()
        self._close()


def _status_mib(pid: int | str, field: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/{pid}/status has no {field}")


def own_peak_mib() -> float:
    """Return the peak resident memory of this process."""
    return _status_mib("self", "VmHWM")


def own_cpu_s() -> float:
    used = os.times()
    return used.user + used.system


def free_port() -> int:
    """Return a port of the loopback interface that is free at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def end_with_parent() -> None:
    """End this process when the one that started it ends in any way: standard input closes then.

    For processes that read nothing from their standard input.
    """

    def wait() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


@contextmanager
def ends_at_sigterm() -> Iterator[None]:
    """Let SIGTERM raise ``SystemExit`` inside the block, so that what the block has started is ended on the way out;
    only in the main thread, and only if nothing handles the signal already."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_ENDED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def in_own_process(function: Callable[..., T], *arguments: Any) -> T:
    """Return ``function(*arguments)``, called in a new process: a client stays with the daemon that it began with.

    If this process ends first, the new one ends as well, after its ``finally`` blocks.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_until_starter_ends, function, *arguments).result()


def _until_starter_ends(function: Callable[..., T], *arguments: Any) -> T:
    starter = multiprocessing.parent_process()
    assert starter is not None

    def wait() -> None:
        starter.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()
    with ends_at_sigterm():
        try:
            return function(*arguments)
        finally:
            if not starter.is_alive():  # the pool's loop would wait for work that never comes
                os._exit(_ENDED)

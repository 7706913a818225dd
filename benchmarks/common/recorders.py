"""Daemons that only record, on a given store, each with a folder and a port of its own; they can be killed."""

import contextlib
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import psutil

from benchmarks.common.processes import ROOT, free_port

_START_S = 120.0


class Recorder:
    """``lightning-trainer serve`` without a policy."""

    def __init__(self, folder: Path, store: Mapping[str, str] | None = None, *, state_dir: Path | None = None) -> None:
        """
        Args:
            folder: a new one, for configuration and log.
            store: the settings of ``[store]``.
            state_dir: an existing one; None: a new one.
        """
        folder.mkdir(parents=True)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._folder = folder
        daemon = f'[daemon]\nport = {port}\ntoken = "none"\nstate_dir = "{state_dir or folder / "state"}"\n'
        lines = (f'{name} = "{value}"\n' for name, value in (store or {}).items())
        (folder / "lightning.toml").write_text(f"{daemon}[store]\n{''.join(lines)}")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start the daemon and return the seconds until it answers."""
        began = time.monotonic()
        command = [sys.executable, "-m", "lightning_trainer", "serve", "--config", str(self._folder / "lightning.toml")]
        with (self._folder / "daemon.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, start_new_session=True)
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/healthz", timeout=5):
                return time.monotonic() - began
            if self._process.poll() is not None or time.monotonic() - began > _START_S:
                raise RuntimeError(f"a daemon did not start: {(self._folder / 'daemon.log').read_text()[-2000:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill the daemon, as ``kill -9`` does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(60)
            self._process = None

    @property
    def process(self) -> psutil.Process:
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def cpu_s(self) -> float:
        times = self.process.cpu_times()
        return times.user + times.system

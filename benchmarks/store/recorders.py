"""Daemons that only record, on a store of one's choice, each with a folder and a port of its own, to be killed."""

import contextlib
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil

from benchmarks.common.processes import ROOT

_START_S = 120.0


class Recorder:
    """``lightning-trainer serve`` without a policy."""

    def __init__(self, folder: Path, store_url: str | None) -> None:
        folder.mkdir(parents=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._folder = folder
        store = "" if store_url is None else f'[store]\nurl = "{store_url}"\n'
        daemon = f'[daemon]\nport = {port}\ntoken = "none"\nstate_dir = "{folder / "state"}"\n'
        (folder / "lightning.toml").write_text(daemon + store)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return when it answers."""
        command = [sys.executable, "-m", "lightning_trainer", "serve", "--config", str(self._folder / "lightning.toml")]
        with (self._folder / "daemon.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, start_new_session=True)
        give_up = time.monotonic() + _START_S
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/healthz", timeout=5):
                return
            if self._process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError(f"a daemon did not start: {(self._folder / 'daemon.log').read_text()[-2000:]}")
            time.sleep(0.1)

    def kill(self) -> None:
        """As ``kill -9`` does it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(60)
            self._process = None

    def cpu_s(self) -> float:
        assert self._process is not None
        times = psutil.Process(self._process.pid).cpu_times()
        return times.user + times.system

"""A daemon with real processes that is started again whenever it ends, as systemd does; nothing else helps it."""

import json
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil

from lightning_trainer.store.tables.steps import select_batches

PATIENCE_S = 1800.0
_RESTART_S = 1.0
_CONFIG = """
[daemon]
port = {port}
token = "none"
state_dir = "state"
[engine]
dtype = "float32"
max_model_len = 512
max_num_seqs = 8
kv_cache_gib = 0.25
[training]
dtype = "float32"
threads = 1
[[policy]]
name = "tiny"
agents = ["tester"]
model = "random:tiny"
group_size = 2
groups_per_step = 2
max_sample_tokens = 256
checkpoint_every = 3
span_timeout_s = 3600
group_timeout_s = 7200
optimizer.lr = 1e-2
"""


class Supervised:
    """A daemon that is started again whenever it ends.

    Args:
        folder: holds its configuration, state, and log; ``state`` may be a file system of its own.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.store = folder / "state" / "lightning.sqlite"
        (folder / "lightning.toml").write_text(_CONFIG.format(port=self.port))
        self.environment = os.environ | {"LIGHTNING_ENDPOINT": self.url, "LIGHTNING_SPOOL_DIR": str(folder / "spool")}
        self.ended: list[int] = []
        """The exit statuses of the daemon's lives."""
        self.started: set[psutil.Process] = set()
        """Every process that was ever seen below the daemon."""
        self._stopping = False
        self._start()
        self._watcher = threading.Thread(target=self._keep_alive, daemon=True)
        self._watcher.start()

    def _start(self) -> None:
        with (self.folder / "daemon.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "lightning_trainer", "serve", "--config", str(self.folder / "lightning.toml")],
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _keep_alive(self) -> None:
        while True:
            status = self.process.wait()
            self.ended.append(status)
            time.sleep(0.0 if self._stopping else _RESTART_S)
            if self._stopping:
                return
            self._start()

    def get(self, path: str, timeout_s: float = 10.0) -> dict | None:
        """Return the daemon's answer; None if it does not answer."""
        try:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=timeout_s) as response:
                return json.load(response)
        except (OSError, ValueError):
            return None

    def wait_for(self, steps: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            status = self.get("/lightning/policies/tiny")
            if status is not None and status["steps_done"] >= steps and status["phase"] == "collecting":
                return
            time.sleep(0.5)
        raise TimeoutError(f"step {steps} is not done after {PATIENCE_S:g} s: {self.last_words()}")

    def pid_of(self, what: str) -> int | None:
        """Return the id of daemon, engine, trainer, or a process of that name below the daemon; None if it is down."""
        if what == "daemon":
            return self.process.pid
        if what in ("engine", "trainer"):
            status = self.get("/lightning/status", 2.0)
            return None if status is None else status["policies"]["tiny"]["processes"].get(what)
        return next((one.pid for one in self.below() if _name(one) == what), None)

    def below(self) -> list[psutil.Process]:
        try:
            found = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        self.started |= set(found)
        return found

    def send(self, body: bytes) -> bool:
        """Post spans once; return whether they were acknowledged."""
        headers = {"content-type": "application/x-protobuf"}
        request = urllib.request.Request(f"{self.url}/v1/traces", body, headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=30):
                return True
        except urllib.error.HTTPError as error:
            if error.code < 500:
                raise ValueError(f"spans were refused: {error.read()!r}") from error
        except OSError:
            pass
        return False

    def checksums(self) -> dict[int, str]:
        status = self.get("/lightning/policies/tiny?limit=1000", 120.0)
        assert status is not None, self.last_words()
        return {version["version"]: version["checksum"] for version in status["versions"]}

    def rows(self, query: str) -> list[tuple]:
        database = sqlite3.connect(f"file:{self.store}?mode=ro", uri=True)
        try:
            return database.execute(query).fetchall()
        finally:
            database.close()

    def trained(self) -> list[str]:
        """Return the ids of all trained transitions."""
        database = sqlite3.connect(f"file:{self.store}?mode=ro", uri=True)
        try:
            batches = select_batches(database, "tiny", after=0)
        finally:
            database.close()
        return [part.transition_id for batch in batches for sample in batch.samples for part in sample.segments]

    def last_words(self) -> str:
        return (self.folder / "daemon.log").read_text(errors="replace")[-3000:]

    def stop(self) -> int:
        """Stop the daemon by SIGTERM and return its exit status."""
        self._stopping = True
        self.below()
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self._watcher.join(180)
        finally:
            if self.process.poll() is None:
                self.process.kill()
        return self.process.wait()


def _name(process: psutil.Process) -> str | None:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return None

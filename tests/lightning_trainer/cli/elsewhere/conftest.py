"""A daemon of another folder, known here by its URL and its token alone."""

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

TOKEN = "a-token-of-another-machine"
CONFIG = f'[daemon]\nport = 0\nstate_dir = "state"\ntoken = "{TOKEN}"\n'


@pytest.fixture(scope="module")
def serve(lightning) -> Iterator[Callable[[Path, str], str]]:
    """``serve(folder, "more of its lightning.toml")`` starts a daemon and returns its URL."""
    running: list[subprocess.Popen] = []

    def start(folder: Path, more: str) -> str:
        (folder / "lightning.toml").write_text(CONFIG + more)
        with (folder / "log").open("wb") as log:
            daemon = lightning.start("serve", cwd=folder, stdout=log, stderr=log)
        running.append(daemon)
        announced, deadline = folder / "state" / "daemon.json", time.monotonic() + 120
        while not (announced.exists() and announced.read_text()):
            assert daemon.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return json.loads(announced.read_text())["url"]

    yield start
    for daemon in running:
        daemon.send_signal(signal.SIGINT)
        daemon.wait(60)


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A folder that knows nothing of the daemon but its token."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIGHTNING_ACCESS_DIR", str(tmp_path / "access"))
    monkeypatch.setenv("LIGHTNING_TOKEN", TOKEN)
    monkeypatch.delenv("LIGHTNING_ENDPOINT", raising=False)
    return tmp_path

"""What benchmarks tell their daemons and programs, and that a killed daemon does not stand in the way of the next."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest

from benchmarks.common import daemons
from benchmarks.common.daemons import _wait_until_collecting, running_daemon
from lightning_trainer.daemon.announcement import announced


class _Collecting(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"phase": "collecting"}')

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.mark.process
def test_what_a_killed_daemon_left_is_not_taken_for_the_one_that_starts(tmp_path: Path) -> None:
    left = tmp_path / "state" / "daemon.json"
    left.parent.mkdir()
    left.write_text(json.dumps({"pid": 1, "url": "http://127.0.0.1:9"}))
    found: list[str] = []
    sleeping = [sys.executable, "-c", "import time; time.sleep(600)"]
    with HTTPServer(("127.0.0.1", 0), _Collecting) as server, subprocess.Popen(sleeping) as daemon:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        waiting = threading.Thread(target=lambda: found.append(_wait_until_collecting(daemon, tmp_path, "p")))
        waiting.start()
        time.sleep(0.2)
        url = f"http://127.0.0.1:{server.server_port}"
        with announced(left, url):
            waiting.join(60)
        daemon.kill()
        server.shutdown()
    assert found == [url]


def test_a_program_finds_the_daemon_of_its_benchmark_whatever_its_user_has_exported(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(daemons, "_wait_until_collecting", lambda *_: "http://127.0.0.1:9")
    monkeypatch.setattr(os, "environ", {**os.environ, "LIGHTNING_TOKEN": "of-another", "OTEL_SDK_DISABLED": "true"})
    with running_daemon(tmp_path, "p"):
        found = [os.environ[name] for name in ("LIGHTNING_ENDPOINT", "LIGHTNING_TOKEN", "OTEL_SDK_DISABLED")]
    assert found == ["http://127.0.0.1:9", "none", "false"]


_BENCHMARK = """
import sys, time
from pathlib import Path
from benchmarks.common import daemons
from benchmarks.common.processes import in_own_process

def train(folder):
    sys.executable = str(folder / "daemon")
    def ready(daemon, *_):
        (folder / "pid").write_text(f"{daemon.pid}\\n")
        return "http://127.0.0.1:9"

    daemons._wait_until_collecting = ready
    with daemons.running_daemon(folder, "p"):
        time.sleep(600)

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    train(folder) if sys.argv[2] == "itself" else in_own_process(train, folder)
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("where", "number"),
    [
        ("itself", signal.SIGTERM),
        ("in a process of its own", signal.SIGTERM),
        ("in a process of its own", signal.SIGKILL),
    ],
)
def test_a_benchmark_that_is_ended_leaves_no_daemon_behind(tmp_path: Path, where: str, number: signal.Signals) -> None:
    # Before: it trained on, for nobody.
    program = tmp_path / "benchmark.py"
    program.write_text(_BENCHMARK)
    daemon = tmp_path / "daemon"
    daemon.write_text("#!/bin/sh\nexec sleep 600\n")
    daemon.chmod(0o755)
    pid = tmp_path / "pid"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, program, tmp_path, where], env=environment) as benchmark:
        wait_until(lambda: pid.exists() and pid.read_text().endswith("\n"))
        seen = [psutil.Process(int(pid.read_text())), *psutil.Process(benchmark.pid).children(recursive=True)]
        benchmark.send_signal(number)
        assert benchmark.wait(60) in (-number, 128 + number)
    _, alive = psutil.wait_procs(seen, timeout=30)
    for left in alive:
        left.kill()
    assert alive == []


def wait_until(there: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 60
    while not there():
        assert time.monotonic() < give_up
        time.sleep(0.05)

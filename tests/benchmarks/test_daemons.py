"""What benchmarks tell their daemons and programs, and that a killed daemon does not stand in the way of the next."""

import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from benchmarks.common import daemons
from benchmarks.common.daemons import _wait_until_collecting, running_daemon
from lightning_trainer.daemon.announcement import announced


class _Collecting(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"phase": "collecting"}')

    def log_message(self, format: str, *args: object) -> None: ...


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

"""What a supervisor is told, and asks, of a daemon that really runs; it only records, so that it starts at once."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_trainer.cli.daemon import serve

pytestmark = pytest.mark.process

CONFIG = '[daemon]\nport = 0\nstate_dir = "state"\n'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "lightning.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket on which systemd listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "notify"))
        channel.settimeout(60)
        yield channel


def test_a_manager_is_told_that_it_serves_and_lives_and_stops(config: Path, manager: socket.socket) -> None:
    told = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "400000"}
    command = [sys.executable, "-m", "lightning_trainer", "serve", "--config", str(config)]
    with subprocess.Popen(command, env=os.environ | told, stderr=subprocess.PIPE) as daemon:
        assert manager.recv(1000).startswith(b"EXTEND_TIMEOUT_USEC=")
        assert manager.recv(1000) == b"READY=1"
        alive = [manager.recv(1000).decode() for _ in range(3)]
        assert all(line.startswith("WATCHDOG=1\nSTATUS=recording at http://127.0.0.1:") for line in alive)
        daemon.send_signal(signal.SIGTERM)
        while (last := manager.recv(1000)).startswith(b"WATCHDOG"):
            pass
        assert last.startswith(b"STOPPING=1")
        assert daemon.wait(60) == 0


async def test_a_manager_that_waits_for_a_long_start_is_asked_for_more_time(manager, monkeypatch) -> None:
    monkeypatch.setattr(serve, "_EVERY_S", 0.01)
    monkeypatch.setattr(serve, "_LOOK_AGAIN_S", 0.01)
    daemon: Any = SimpleNamespace(url=None, policies=())
    telling = asyncio.create_task(serve.keep_told(daemon, {"NOTIFY_SOCKET": manager.getsockname()}))
    for _ in range(3):
        assert (await asyncio.to_thread(manager.recv, 1000)).startswith(
            b"EXTEND_TIMEOUT_USEC=60000000\nSTATUS=starting"
        )
    daemon.url = "http://127.0.0.1:8321"
    while (said := await asyncio.to_thread(manager.recv, 1000)).startswith(b"EXTEND"):
        pass
    assert said == b"READY=1"
    telling.cancel()
    await asyncio.gather(telling, return_exceptions=True)


def test_a_start_that_waits_for_something_is_stopped_like_any_other(lightning: Any, config: Path) -> None:
    """Here for a database that never answers, in a thread; a download and an upgrade of the store are like that too."""
    said = config.with_name("said")
    with socket.create_server(("127.0.0.1", 0)) as database, said.open("wb") as errors:
        config.write_text(f'{CONFIG}[store]\nurl = "postgresql://127.0.0.1:{database.getsockname()[1]}/runs"\n')
        daemon = lightning.start("serve", cwd=config.parent, stderr=errors)
        database.settimeout(120)
        connection, _ = database.accept()
        with connection:
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(60) == 0, said.read_text()
    assert said.read_text().endswith("stopped\n")


@pytest.mark.parametrize("log", ["a full disk", "a reader that has gone"])
def test_a_log_that_cannot_be_written_does_not_keep_it_from_stopping(log, lightning, config: Path, manager) -> None:
    reader, unread = os.pipe()
    os.close(reader)
    told = {"NOTIFY_SOCKET": manager.getsockname()}
    with open("/dev/full", "w") as full, open(unread, "w") as pipe:
        errors = full if log == "a full disk" else pipe
        daemon = lightning.start("serve", cwd=config.parent, env=os.environ | told, stderr=errors)
    try:
        while manager.recv(1000) != b"READY=1":
            pass
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(30) == 0
    finally:
        daemon.kill()
        daemon.wait()


def test_health_is_the_daemons_answer(lightning: Any, config: Path) -> None:
    def asked(*options: str) -> tuple[int, str]:
        done = lightning.run("health", *options, cwd=config.parent)
        return done.returncode, done.stdout

    status, said = asked()
    assert (status, "no daemon runs on" in said) == (1, True)
    daemon = lightning.start("serve", cwd=config.parent)
    deadline = time.monotonic() + 60
    while asked()[0] != 0:
        assert time.monotonic() < deadline
    assert '"ok"' in asked()[1]
    assert asked("--ready") == (0, '{"ready":true,"store":["ready"],"policies":{}}\n')
    daemon.send_signal(signal.SIGSTOP)
    status, said = asked("--timeout", "0.5")
    assert (status, "did not answer" in said) == (1, True)
    daemon.send_signal(signal.SIGCONT)
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(60) == 0

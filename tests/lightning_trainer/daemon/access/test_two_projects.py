"""Two projects at one port, one after the other: what was recorded for one is never sent to the other, nor lost."""

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from lightning_instrumentation.access.known import known_daemon
from lightning_instrumentation.delivery.spool import endpoint_folder

from lightning_trainer.store.postgres.store import PostgresStore

pytestmark = pytest.mark.process

TIMEOUT_S = 120
AGENT = """
import sys
import lightning_instrumentation as lt
for line in sys.stdin:
    word, name = line.split()
    if word == "record":
        with lt.rollout(name):
            pass
        print("recorded", flush=True)
    else:
        print("flushed", lt.flush(float(name)), flush=True)
"""


# A look every 200 ms for what processes left, instead of every five seconds.
OFTEN = "from lightning_trainer.daemon import spools; spools._LOOK_AGAIN_S = 0.2"
SEVERAL_LOOKS_S = 1.5


class Project:
    def __init__(self, lightning: Any, folder: Path, port: int, settings: str = "") -> None:
        self._lightning = lightning
        self.folder = folder
        folder.mkdir()
        (folder / "lightning.toml").write_text(f'[daemon]\nport = {port}\nstate_dir = "state"\n{settings}')
        self._running: Any = None

    def start(self) -> None:
        with (self.folder / "daemon.log").open("ab") as log:
            self._running = self._lightning.start("serve", cwd=self.folder, stdout=log, stderr=log, first=OFTEN)
        announced, deadline = self.folder / "state" / "daemon.json", time.monotonic() + TIMEOUT_S
        while not (announced.exists() and announced.read_text()):
            assert self._running.poll() is None, (self.folder / "daemon.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def stop(self) -> None:
        if self._running is not None:
            self._running.send_signal(signal.SIGINT)
            assert self._running.wait(TIMEOUT_S) == 0
            self._running = None

    def tasks(self) -> set[str]:
        """Of the rollouts in its store."""
        with sqlite3.connect(f"file:{self.folder / 'state' / 'lightning.sqlite'}?mode=ro", uri=True) as connection:
            return {task for (task,) in connection.execute("SELECT task_id FROM attempts")}

    def gets(self, *tasks: str) -> None:
        deadline = time.monotonic() + 60
        while self.tasks() != set(tasks):
            assert time.monotonic() < deadline, self.tasks()
            time.sleep(0.02)


class Agent:
    """A program that records when it is told to."""

    def __init__(self, folder: Path, port: int, **environment: str) -> None:
        endpoint = {"LIGHTNING_ENDPOINT": f"http://127.0.0.1:{port}"}
        self.said = folder / f"agent-{time.monotonic_ns()}.log"
        with self.said.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", AGENT],
                env=os.environ | endpoint | environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def tell(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def record(self, *tasks: str) -> None:
        for task in tasks:
            assert self.tell(f"record {task}") == "recorded"

    def says(self, words: str) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while words not in self.said.read_text():
            assert time.monotonic() < deadline, self.said.read_text()
            time.sleep(0.1)

    def end(self) -> None:
        if self._process.poll() is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            assert self._process.wait(TIMEOUT_S) == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def projects(lightning, tmp_path, port, monkeypatch):
    monkeypatch.setenv("LIGHTNING_SPOOL_DIR", str(tmp_path / "spool"))
    monkeypatch.setenv("LIGHTNING_ACCESS_DIR", str(tmp_path / "access"))
    made: list[Project] = []

    def make(settings: str = "") -> tuple[Project, Project]:
        made.extend(Project(lightning, tmp_path / name, port, settings) for name in ("first", "second"))
        return made[0], made[1]

    yield make
    for project in made:
        project.stop()


@pytest.mark.parametrize(
    "settings",
    [
        'token = "the-same-for-both-projects"\n',
        pytest.param("", marks=pytest.mark.slow),
        pytest.param('token = "none"\n', marks=pytest.mark.slow),
    ],
    ids=["one token", "a token each", "no token"],
)
def test_what_waits_for_one_is_not_sent_to_the_other_and_not_lost(projects, tmp_path, port, settings):
    first, second = projects(settings)
    first.start()
    lives, dies = Agent(tmp_path, port), Agent(tmp_path, port)
    lives.record("a1")
    dies.record("a2")
    assert lives.tell("flush 30") == dies.tell("flush 30") == "flushed True"
    first.stop()
    lives.record("a3")
    dies.record("a4")
    dies.kill()  # its spool is an orphan, which any process with this endpoint, and any daemon, looks for
    late = Agent(tmp_path, port)  # began while nobody was there: the first project's was the last
    late.record("a5")
    late.kill()
    second.start()
    lives.record("a6")
    assert lives.tell("flush 1") == "flushed False"
    lives.says("another project's")
    other = Agent(tmp_path, port)
    other.record("b1")
    assert other.tell("flush 30") == "flushed True"
    second.gets("b1")
    time.sleep(SEVERAL_LOOKS_S)
    assert second.tasks() == {"b1"}
    second.stop()
    first.start()
    assert lives.tell("flush 30") == "flushed True"
    first.gets("a1", "a2", "a3", "a4", "a5", "a6")
    lives.end()
    other.end()


def test_a_state_folder_that_was_emptied_is_the_same_project(projects, tmp_path, port):
    first, _ = projects()
    first.start()
    agent = Agent(tmp_path, port)
    agent.record("a1")
    assert agent.tell("flush 30") == "flushed True"
    first.stop()
    shutil.rmtree(first.folder / "state")
    agent.record("a2")
    first.start()
    assert agent.tell("flush 30") == "flushed True"
    first.gets("a2")
    agent.end()


def test_what_an_older_version_left_goes_to_the_daemon_that_was_there_then(projects, tmp_path, port):
    """It named its folder by the address alone, and the daemon left nothing but its token."""
    first, second = projects()
    first.start()
    url = f"http://127.0.0.1:{port}"
    agent = Agent(tmp_path, port)
    agent.record("a1")
    assert agent.tell("flush 30") == "flushed True"
    first.stop()
    agent.record("a2")
    agent.kill()
    spools = tmp_path / "spool"
    (bound,) = [folder for folder in spools.iterdir() if "." in folder.name]
    old = endpoint_folder(spools, url)
    for file in bound.iterdir():
        old.mkdir(exist_ok=True)
        file.rename(old / file.name)
    known = known_daemon(url)
    assert known is not None
    (word,) = (tmp_path / "access").iterdir()
    word.write_text(json.dumps({"token": known.token}))
    (first.folder / "state" / "daemon-id").unlink()
    second.start()
    time.sleep(SEVERAL_LOOKS_S)
    assert second.tasks() == set()
    second.stop()
    first.start()
    first.gets("a1", "a2")


async def test_daemons_of_one_store_are_one_project_whichever_of_them_answers_at_the_address(
    projects, tmp_path, port, postgres_url
):
    one, other = projects(f'token = "the-same-for-both-daemons"\n[store]\nurl = "{postgres_url}"\n')
    one.start()
    agent = Agent(tmp_path, port)
    agent.record("a1")
    assert agent.tell("flush 30") == "flushed True"
    one.stop()
    agent.record("a2")
    other.start()
    agent.record("a3")
    assert agent.tell("flush 30") == "flushed True"
    agent.end()
    async with PostgresStore(postgres_url) as store:
        assert {attempt.task_id for attempt in await store.attempts()} == {"a1", "a2", "a3"}

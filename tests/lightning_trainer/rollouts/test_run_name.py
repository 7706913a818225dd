"""A run's name: the same for the same program, another for any other, and held by one process at a time."""

import asyncio
import contextlib
import functools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from typer.testing import CliRunner

from lightning_trainer.cli.app import app
from lightning_trainer.daemon.api.runs import runs_router
from lightning_trainer.environments.agent import ChatAgent
from lightning_trainer.errors import LightningError
from lightning_trainer.rollouts import Command, Runner
from lightning_trainer.rollouts.daemon_client import DaemonClient
from lightning_trainer.rollouts.environment.program_agent import ProgramAgent
from lightning_trainer.rollouts.run_name import command_label, default_run, held_run
from lightning_trainer.rollouts.step_runner import StepRunner
from lightning_trainer.store import SqliteStore, Store
from lightning_trainer.store.postgres.store import PostgresStore

HOLDER = """
import sys, time
from lightning_trainer.rollouts.run_name import held_run
with held_run(sys.argv[1], "r", token=None, numbered=True) as name:
    print(name, flush=True)
    time.sleep(600)
"""


class Daemon:
    """The part of a daemon that knows runs, which can be started again on its port."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        store, app = self._store(), FastAPI()
        app.include_router(runs_router(store))
        config = uvicorn.Config(app, port=self.port, log_level="critical", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)

        async def serve() -> None:
            async with store:
                await self._server.serve()

        self._thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
        self._thread.start()
        self.wait_until(lambda: self._server.started)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()

    def held(self) -> str:
        with urllib.request.urlopen(f"{self.url}/lightning/runs", timeout=10) as response:
            return response.read().decode()

    @staticmethod
    def wait_until(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(lambda: SqliteStore(tmp_path / "lightning.sqlite"))
    yield daemon
    daemon.stop()


def hold(daemon: Daemon, name: str = "r", *, numbered: bool = True) -> contextlib.AbstractContextManager[str]:
    return held_run(daemon.url, name, token=None, numbered=numbered, patience_s=20)


def attempt(task: object) -> float:
    return 1.0


def other(task: object) -> float:
    return 1.0


def test_the_default_name_tells_policies_programs_and_functions_apart() -> None:
    assert default_run(["p"], attempt) == default_run(["p"], functools.partial(attempt)) == f"p:{__name__}.attempt"

    def program(*words: str) -> Command:
        return Command(words, endpoint="http://127.0.0.1:9")

    different = {
        default_run(["p"], attempt),
        default_run(["q"], attempt),
        default_run(["p", "q"], attempt),
        default_run(["p"], other),
        default_run(["p"], program("python", "a.py")),
        default_run(["p"], program("python", "a.py", "--fast")),
        default_run(["p"], program("python", "b.py")),
    }
    assert len(different) == 7
    assert default_run(["p"], program("/usr/bin/python", "a.py")) == default_run(["p"], program("python", "a.py"))
    assert command_label(["a"], "tasks.jsonl", 0) != command_label(["a"], "tasks.jsonl", 1)


class World:
    """An environment, as far as names go."""

    version = "1"

    def reset(self, task: object) -> str:
        return ""

    def step(self, action: object) -> tuple[str, float, bool]:
        return "", 1.0, True


class OtherWorld(World):
    pass


def test_the_default_name_tells_environments_and_who_plays_them_apart() -> None:
    # Before: an interrupted program's groups were completed by another one's agent in the same environment.
    def named(world: type, agent: Any = None, seed: int = 0) -> str:
        runner = Runner.from_environment(world, policy="p", agent=agent, seed=seed, endpoint="http://127.0.0.1:9")
        return default_run(["p"], runner.environment)

    def program(file: str) -> ProgramAgent:
        return ProgramAgent(Command(["python", file], endpoint="http://127.0.0.1:9"))

    module = World.__module__
    elsewhere = type("World", (World,), {"__module__": "elsewhere"})
    assert named(World) == named(World, ChatAgent("p", base_url="http://127.0.0.1:9/v1")) == f"p:{module}.World:0"
    assert named(World, attempt) == f"p:{module}.World:0:{module}.attempt"
    different = {
        named(World),
        named(World, seed=1),
        named(OtherWorld),
        named(elsewhere),
        named(World, attempt),
        named(World, other),
        named(World, program("a.py")),
        named(World, program("b.py")),
    }
    assert len(different) == 8


WITHOUT_A_DAEMON = """
from lightning_trainer.rollouts.run_name import default_run
def attempt(task): ...
print(default_run(["p"], attempt))
"""


def named(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)), **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.process
def test_programs_of_one_name_in_two_folders_are_two_runs_wherever_they_are_started(tmp_path: Path) -> None:
    # Before: both were p:train.attempt, and one that was started after the other took its groups for its own.
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.py").write_text(WITHOUT_A_DAEMON)
    names = [named("train.py", cwd=tmp_path / folder) for folder in ("a", "b")]
    assert len({*names}) == 2
    assert all(re.fullmatch(r"p:train@[0-9a-f]{8}\.attempt", name) for name in names)
    assert names[0] == named("a/train.py", cwd=tmp_path) == named(tmp_path / "a" / "train.py", cwd=tmp_path / "b")
    started_by_a_notebook = named("train.py", cwd=tmp_path / "a", JPY_SESSION_NAME="/home/me/study.ipynb")
    assert started_by_a_notebook == names[0]


@pytest.mark.process
def test_a_notebook_is_known_by_its_path_or_else_by_its_folder(tmp_path: Path) -> None:
    # Before: every notebook was p:ipykernel_launcher.attempt. A kernel's __main__ has no file, as that of python -c.
    def notebook(says: str = "", **environment: str) -> str:
        return named("-c", says + WITHOUT_A_DAEMON, cwd=tmp_path, **environment)

    study = notebook(JPY_SESSION_NAME="/home/me/study.ipynb")
    assert re.fullmatch(r"p:study@[0-9a-f]{8}\.attempt", study)
    assert notebook("__vsc_ipynb_file__ = '/home/me/study.ipynb'") == study
    others = {notebook(JPY_SESSION_NAME="/home/you/study.ipynb"), notebook(JPY_SESSION_NAME="/home/me/other.ipynb")}
    assert len({study, *others}) == 3
    assert notebook(JPY_SESSION_NAME="").startswith(f"p:{tmp_path.name}@")


def test_a_long_name_is_cut_and_stays_its_own() -> None:
    names = {default_run(["p"], Command(["a", "x" * 400 + end], endpoint="http://127.0.0.1:9")) for end in "yz"}
    assert len(names) == 2
    assert all(len(name) <= 120 for name in names)


@pytest.mark.parametrize("name", ["", "a/b", "a b", "x" * 121])
def test_a_name_that_no_group_id_can_hold_is_refused_in_a_sentence(name: str) -> None:
    with pytest.raises(LightningError, match="give it 1 to 120 characters without white space and slashes"):
        Runner("p", attempt, run=name, endpoint="http://127.0.0.1:9")


def test_the_same_run_at_the_same_time_gets_a_number_and_both_names_are_free_afterwards(daemon: Daemon) -> None:
    for _ in range(2):
        with hold(daemon) as first, hold(daemon) as second, hold(daemon, "another") as third:
            assert (first, second, third) == ("r", "r-2", "another")
        daemon.wait_until(lambda: daemon.held() == "[]")


def test_a_proxy_before_the_daemon_is_told_not_to_hold_its_lines_back(daemon: Daemon) -> None:
    # Before: nginx kept the first line, a runner waited for it, and no run began
    with urllib.request.urlopen(f"{daemon.url}/lightning/runs/r/hold", timeout=10) as response:
        assert response.readline() == b"held\n"
        assert (response.headers["x-accel-buffering"], response.headers["cache-control"]) == ("no", "no-store")


@pytest.mark.process
@pytest.mark.parametrize("source", ["environment", "file", "file and environment"])
def test_the_same_run_at_the_same_time_tries_other_tasks(
    daemon: Daemon, tmp_path: Path, monkeypatch, source: str
) -> None:
    # Before: a second machine with the same program tried what the first did.
    status = {"steps_done": 0, "groups_per_step": 4, "group_size": 2, "needs_baseline": False, "agents": ["*"]}
    monkeypatch.setattr(DaemonClient, "wait_until_there", lambda _: None)
    monkeypatch.setattr(DaemonClient, "policy", lambda _: status)
    begun: list[tuple[str, set[str]]] = []

    def note(runner: StepRunner, run: str, status: dict, tasks: Callable[[int], Any], steps: int) -> None:
        begun.append((run, {task.id for task in tasks(1)}))

    monkeypatch.setattr(StepRunner, "_train", note)
    (tmp_path / "tasks.jsonl").write_text("".join(f'{{"id": "{number}"}}\n' for number in range(10_000)))
    (tmp_path / "world.py").write_text("class World:\n    reset = step = lambda *_: None\n")
    played = [] if source == "file" else ["--environment", f"{tmp_path}/world.py:World"]
    command = ["rollouts", "--policy", "p", "--tasks", f"{tmp_path}/tasks.jsonl", "--steps", "1", *played]

    def train() -> set[str]:
        if source == "environment":
            Runner.from_environment(World, policy="p", endpoint=daemon.url).train(steps=1)
        else:
            CliRunner().invoke(app, [*command, "--endpoint", daemon.url, "--", "sh"], catch_exceptions=False)
        return begun[-1][1]

    alone = train()
    with hold(daemon, begun[0][0]):
        beside = train()
    assert (len(alone), len(beside), len(alone & beside)) == (4, 4, 0)
    daemon.wait_until(lambda: daemon.held() == "[]")
    assert train() == alone
    assert [name for name, _ in begun] == [begun[0][0], f"{begun[0][0]}-2", begun[0][0]]


def test_the_same_run_at_two_daemons_of_one_store_gets_a_number(postgres_url: str) -> None:
    one, two = (Daemon(lambda: PostgresStore(postgres_url)) for _ in range(2))
    with hold(one) as first, hold(two) as second:
        assert (first, second) == ("r", "r-2")
        assert one.held() == two.held() == '["r","r-2"]'
    one.wait_until(lambda: two.held() == "[]")
    with hold(two) as again:
        assert again == "r"
        one.stop()  # not the daemon that holds it
        assert two.held() == '["r"]'
    two.stop()


def test_a_name_that_was_given_is_refused_in_a_sentence_while_it_is_held(daemon: Daemon) -> None:
    refused = pytest.raises(LightningError, match=r"the run 'r' is going on in another process.*rollouts --run NAME")
    with hold(daemon), refused, hold(daemon, numbered=False):
        pass
    daemon.wait_until(lambda: daemon.held() == "[]")
    with hold(daemon, numbered=False) as name:
        assert name == "r"


@pytest.mark.process
def test_a_killed_process_leaves_its_name_to_whoever_starts_it_again(daemon: Daemon) -> None:
    def start() -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen([sys.executable, "-c", HOLDER, daemon.url], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    first, name = start()
    second, another = start()
    try:
        assert (name, another) == ("r", "r-2")
        os.kill(first.pid, signal.SIGKILL)
        first.wait(20)
        daemon.wait_until(lambda: daemon.held() == '["r-2"]')
        first, name = start()
        assert name == "r"
    finally:
        for process in (first, second):
            process.kill()
            process.wait(20)
            assert process.stdout is not None
            process.stdout.close()


@pytest.mark.long
def test_a_daemon_that_was_restarted_is_told_again(daemon: Daemon) -> None:
    with hold(daemon):
        daemon.stop()
        daemon.start()
        daemon.wait_until(lambda: daemon.held() == '["r"]')
        with hold(daemon) as second:
            assert second == "r-2"

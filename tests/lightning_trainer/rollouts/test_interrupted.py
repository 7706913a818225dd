"""A run that is interrupted: what it was doing does not count, and nothing of it goes on."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import lightning_instrumentation as lt
import psutil
import pytest
from lightning_instrumentation.rollout import Rollout

from lightning_trainer.cli.rollouts import ends_at_signals
from lightning_trainer.rollouts import Command, Event, Runner
from lightning_trainer.rollouts.awaiting import Waiting, waiting
from lightning_trainer.rollouts.command import CommandError
from lightning_trainer.rollouts.step_runner import ends_in_one_line
from lightning_trainer.rollouts.task_file import FileTask

ENDPOINT = "http://127.0.0.1:9"
TASKS = [FileTask(name, {}) for name in "abc"]


@pytest.fixture(autouse=True)
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("lightning_trainer.rollouts.daemon_client.DaemonClient.wait_until_there", lambda _: None)
    lt.shutdown(0)
    lt.init(ENDPOINT, spool_dir=tmp_path / "spool")
    yield
    lt.shutdown(0)


def interrupted(run: Callable[[], object], begun: Callable[[], bool]) -> None:
    """Run it until it has begun; then comes Ctrl-C."""

    main = threading.get_ident()

    def interrupt() -> None:
        wait_until(begun)
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):  # outside of tests and notebooks it is SystemExit(130)
            run()
    finally:
        signal.signal(signal.SIGINT, before)


def wait_until(there: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 60
    while not there():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def test_an_evaluation_does_not_promise_to_go_on(capsys) -> None:
    tried: list[str] = []
    events: list[Event] = []

    def attempt(task: FileTask) -> float:
        tried.append(task.id)
        if task.id == "c" and tried.count("c") == 1:
            time.sleep(600)
        return 1.0

    runner = Runner("p", attempt, endpoint=ENDPOINT, on_event=events.append)
    interrupted(lambda: runner.evaluate(TASKS, stage="before"), lambda: len(events) == 2 and len(tried) == 3)
    line = "interrupted: what has ended is recorded; started again, the evaluation tries every task anew"
    assert capsys.readouterr().err.startswith(f"{line}; functions that go on until they end, and do not count: ")
    assert len(runner.evaluate(TASKS, stage="before")) == 3
    assert sorted(tried) == ["a", "a", "b", "b", "c", "c"]


def test_an_evaluation_with_a_journal_goes_on(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("lightning_trainer.rollouts.daemon_client.DaemonClient.live_versions", lambda _: {"p": 1})
    tried: list[str] = []
    events: list[Event] = []

    async def attempt(task: FileTask) -> float:
        tried.append(task.id)
        if task.id == "c" and tried.count("c") == 1:
            await asyncio.sleep(600)
        return 1.0

    runner = Runner("p", attempt, endpoint=ENDPOINT, on_event=events.append)
    evaluate = lambda: runner.evaluate(TASKS, stage="before", journal=tmp_path / "journal")  # noqa: E731
    interrupted(evaluate, lambda: len(events) == 2 and len(tried) == 3)
    line = f"interrupted: what has ended is recorded; start it again to go on from {tmp_path / 'journal'}"
    assert capsys.readouterr().err.startswith(line)
    assert [one.reward for one in evaluate()] == [1.0] * 3
    assert sorted(tried) == ["a", "b", "c", "c"]


def test_a_callback_that_exits_ends_the_evaluation() -> None:
    """Before: its worker was gone, and the evaluation waited for it."""
    runner = Runner("p", lambda task: 1.0, endpoint=ENDPOINT, on_event=lambda event: sys.exit("enough"))
    ended: list[BaseException] = []

    def evaluate() -> None:
        try:
            runner.evaluate(TASKS, stage="before")
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=evaluate, daemon=True)
    thread.start()
    thread.join(20)
    assert [repr(error) for error in ended] == ["SystemExit('enough')"]


def test_a_function_that_goes_on_after_the_interrupt_does_not_count(monkeypatch) -> None:
    """In a notebook the process lives on. Before, it ended as an ordinary success, and a later run counted it."""
    retried: list[Rollout] = []
    monkeypatch.setattr(Rollout, "retried", lambda rollout: retried.append(rollout))
    begun, end = threading.Event(), threading.Event()
    events: list[Event] = []

    def attempt(task: FileTask) -> float:
        begun.set()
        end.wait(60)
        return 1.0

    runner = Runner("p", attempt, endpoint=ENDPOINT, on_event=events.append)
    interrupted(lambda: runner.evaluate(TASKS[:1], stage="before"), begun.is_set)
    assert retried == []
    end.set()
    wait_until(lambda: len(retried) == 1)
    time.sleep(0.3)
    assert events == []


def test_a_coroutine_under_way_is_cancelled(monkeypatch, capsys) -> None:
    retried: list[Rollout] = []
    monkeypatch.setattr(Rollout, "retried", lambda rollout: retried.append(rollout))
    begun, cancelled = threading.Event(), threading.Event()

    async def attempt(task: FileTask) -> float:
        begun.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return 1.0

    runner = Runner("p", attempt, endpoint=ENDPOINT, retries=1)
    interrupted(lambda: runner.evaluate(TASKS[:1], stage="before"), begun.is_set)
    assert cancelled.wait(10)
    wait_until(lambda: len(retried) == 1)
    assert "functions" not in capsys.readouterr().err


@pytest.mark.parametrize("shell", [None, object()])
def test_outside_of_tests_only_a_notebook_sees_the_interrupt(shell: object, monkeypatch) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    with pytest.raises(KeyboardInterrupt if shell else SystemExit), ends_in_one_line():
        raise KeyboardInterrupt


@pytest.mark.parametrize("retries", [0, 1])
def test_programs_are_killed_with_the_run_and_have_not_failed(retries, tmp_path: Path, monkeypatch, capsys) -> None:
    # Before: they were recorded as failed, and a run that was started again did not repeat them; with retries they
    # were started once more. In a program of one's own they went on, and called the model.
    retried: list[Rollout] = []
    monkeypatch.setattr(Rollout, "retried", lambda rollout: retried.append(rollout))
    started = tmp_path / "started"
    command = Command(["sh", "-c", 'echo $$ >> "$0"; exec sleep 600', str(started)], endpoint=ENDPOINT)
    events: list[Event] = []
    runner = Runner("p", command, endpoint=ENDPOINT, concurrency=2, retries=retries, on_event=events.append)
    begun = lambda: started.exists() and started.read_text().count("\n") == 2  # noqa: E731
    interrupted(lambda: runner.evaluate(TASKS, stage="held-out"), begun)
    for pid in map(int, started.read_text().split()):
        wait_until(lambda pid=pid: not psutil.pid_exists(pid))
    assert "functions" not in capsys.readouterr().err
    wait_until(lambda: len(retried) == 2)
    time.sleep(0.3)
    assert begun()
    assert events == []


@pytest.mark.process
def test_a_program_that_starts_when_the_run_has_ended_ends_at_once() -> None:
    """Before: one whose turn came while the others were killed went on."""
    ended = Waiting()
    ended.end()
    before = waiting.set(ended)
    try:
        with pytest.raises(CommandError, match="exit status -9"):
            Command(["sleep", "600"], endpoint=ENDPOINT)(TASKS[0])
    finally:
        waiting.reset(before)


def test_without_its_terminal_a_command_goes_on_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ends_at_signals():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.process
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_programs_of_a_command(how: signal.Signals, tmp_path: Path) -> None:
    # Before: they went on, and called the model, without anyone who heard of it.
    (tmp_path / "tasks.jsonl").write_text('{"id": "a"}\n')
    pid = tmp_path / "pid"

    class Healthy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"status": "ok", "version": "0"}')

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Healthy) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        options = ["--tasks", str(tmp_path / "tasks.jsonl"), "--evaluate", "e"]
        options += ["--endpoint", f"http://127.0.0.1:{server.server_port}"]
        program = ["sh", "-c", 'echo $$ > "$0"; exec sleep 600', str(pid)]
        environment = {**os.environ, "LIGHTNING_TOKEN": "none", "LIGHTNING_SPOOL_DIR": str(tmp_path / "spool")}
        command = [sys.executable, "-m", "lightning_trainer", "rollouts", *options, "--", *program]
        with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
            wait_until(lambda: pid.exists() and pid.read_text().endswith("\n"))
            process.send_signal(how)
            assert process.wait(60) == 128 + how
        server.shutdown()
    wait_until(lambda: not psutil.pid_exists(int(pid.read_text())))

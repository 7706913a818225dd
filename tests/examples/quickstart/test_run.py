"""The quickstart's own process: whatever ends it, nothing that it started lives on."""

import functools
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest

from examples.calculator.quickstart.assemble import _held_out
from examples.calculator.quickstart.child import running
from examples.calculator.quickstart.run import _agent_environment, _get, _last_line, _write_config
from lightning_trainer.config.file import load_config

pytestmark = pytest.mark.process


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ended_while_it_starts_it_takes_its_children_along(how: signal.Signals, tmp_path: Path):
    log = (tmp_path / "out.txt").open("wb")
    command = [sys.executable, "-m", "lightning_trainer", "quickstart", "--steps", "1", "--out", str(tmp_path / "run")]
    # A test run in the background ignores SIGINT, one under nohup SIGHUP, and so would their children.
    heed = functools.partial(signal.signal, how, signal.SIG_DFL)
    quickstart = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=heed)
    children: list[psutil.Process] = []
    deadline = time.monotonic() + 60
    while not children and time.monotonic() < deadline:
        assert quickstart.poll() is None, (tmp_path / "out.txt").read_text()
        children = psutil.Process(quickstart.pid).children(recursive=True)
        time.sleep(0.05)
    assert children

    quickstart.send_signal(how)

    assert quickstart.wait(60) != 0
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive
    assert "Traceback" not in (tmp_path / "out.txt").read_text()


def test_under_nohup_it_goes_on_without_its_terminal(tmp_path: Path):
    command = [sys.executable, "-m", "lightning_trainer", "quickstart", "--steps", "1", "--out", str(tmp_path / "run")]
    ignore = functools.partial(signal.signal, signal.SIGHUP, signal.SIG_IGN)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=ignore) as run:
        deadline = time.monotonic() + 60
        while not (tmp_path / "run" / "daemon.log").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        run.send_signal(signal.SIGHUP)
        time.sleep(1)
        assert run.poll() is None
        run.send_signal(signal.SIGTERM)
        assert run.wait(60) == 128 + signal.SIGTERM


@pytest.mark.parametrize("steps", [1, 2, 3, 40])
def test_any_number_of_steps_has_a_schedule(steps: int, tmp_path: Path):
    optimizer = load_config(_write_config(tmp_path, seed=0, steps=steps)).only_policy.optimizer
    assert (optimizer.total_steps, optimizer.warmup_steps) == (steps, min(2, steps - 1))


def test_what_an_earlier_run_in_the_folder_said_is_not_said_of_this_one(tmp_path: Path):
    for text in ("error: an earlier mistake", "Killed"):
        with running("child", tmp_path, [sys.executable, "-c", f"print({text!r})"]) as (child, log):
            child.wait(30)
    assert _last_line(log) == "Killed"
    assert "error: an earlier mistake" in log.read_text()


def test_before_is_what_was_answered_before_any_training():
    def evaluated(stage: str, *rewards: float) -> list[dict]:
        tasks = {f"t{number}": reward for number, reward in enumerate(rewards)}
        ended = [{"event": "AttemptEnded", "stage": stage, "task_id": task, "reward": tasks[task]} for task in tasks]
        return [*ended, {"event": "EvaluationEnded", "stage": stage, "families": dict.fromkeys(tasks, "sums")}]

    interrupted = evaluated("before", 1.0, 1.0)[:1]  # the program ended within its evaluation
    resumed = [*evaluated("before", 0.0, 0.0), *evaluated("before", 1.0, 0.0), *evaluated("after", 1.0, 1.0)]
    held_out = _held_out([*interrupted, *resumed])
    assert (held_out.before.successes, held_out.after.successes) == (0, 2)


def test_a_signal_while_a_child_starts_waits_until_the_child_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    children = []

    class Interrupted(subprocess.Popen):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            children.append(self)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with (
            pytest.raises(SystemExit),
            running("child", tmp_path, [sys.executable, "-c", "import time; time.sleep(600)"]),
        ):
            pytest.fail("the block began although the signal had come")
    finally:
        signal.signal(signal.SIGTERM, before)

    assert children[0].returncode is not None


def test_the_agent_finds_the_quickstarts_daemon_whatever_its_user_has_exported(tmp_path: Path, monkeypatch):
    others = {"LIGHTNING_ENDPOINT": "http://elsewhere:8321", "LIGHTNING_TOKEN": "of-another-daemon"}
    for name, value in {**others, "OTEL_SDK_DISABLED": "true"}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "token").write_text("its-own\n")
    code = (
        "import lightning_instrumentation as lt; from lightning_instrumentation import runtime as r; lt.init(); "
        "print(r._runtime and (r._runtime.settings.endpoint, r._runtime.settings.token))"
    )
    environment = _agent_environment("http://127.0.0.1:9", tmp_path)
    with running("agent", tmp_path, [sys.executable, "-c", code], environment) as (agent, log):
        agent.wait(60)
    assert "('http://127.0.0.1:9', 'its-own')" in log.read_text()


def test_a_proxy_is_asked_neither_by_the_quickstart_nor_by_its_agent(tmp_path: Path, monkeypatch):
    class Daemon(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"phase": "collecting"}')

    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "token").write_text("its-own\n")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "example.com")
    code = "import sys, httpx; print(httpx.get(sys.argv[1]).text)"
    with HTTPServer(("127.0.0.1", 0), Daemon) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert _get(url, tmp_path) == {"phase": "collecting"}
        environment = _agent_environment(url, tmp_path)
        assert environment["no_proxy"] == "example.com,127.0.0.1"
        with running("agent", tmp_path, [sys.executable, "-c", code, url], environment) as (agent, log):
            agent.wait(60)
        server.shutdown()
    assert '{"phase": "collecting"}' in log.read_text()

"""On Windows datasets are made of files, and what needs Linux or macOS says so; see ``tests/windows.py``."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

_LIBRARIES = "import aiohttp, fastapi, httpx, psutil, pydantic, rich.console, rich.progress, typer.core, uvicorn\n"
_WINDOWS = (Path(__file__).parents[1] / "windows.py").read_text(encoding="utf-8")
_MAIN = """
sys.platform = "win32"
for stream in (sys.stdout, sys.stderr):
    stream.reconfigure(encoding="cp1252")
from lightning_trainer.cli import main
sys.argv[0] = "lightning-trainer"
main()
"""
_CALLS = [
    {"prompt_ids": [1], "response_ids": [3], "attempt": attempt, "group": "g", "attempt_reward": reward}
    for attempt, reward in (("a", 1.0), ("b", 0.0))
]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", _LIBRARIES + _WINDOWS + _MAIN, *arguments]
    environment = {**os.environ, "PYTHONUTF8": "0"}
    return subprocess.run(program, cwd=folder, env=environment, capture_output=True, encoding="utf-8", timeout=120)


def test_a_dataset_is_made_of_a_file_and_what_is_said_can_be_piped(tmp_path) -> None:
    # Before: "needs Linux or macOS"; and what cp1252 cannot spell was a traceback.
    calls = "".join(f"{json.dumps({**call, 'logprobs': [-0.5]})}\n" for call in _CALLS)
    (tmp_path / "calls.jsonl").write_text(calls, encoding="utf-8")
    done = run(tmp_path, "build", "--calls", "calls.jsonl", "--out", "例.jsonl")
    assert (done.returncode, "例.jsonl" in done.stdout) == (0, True), done.stderr
    assert len((tmp_path / "例.jsonl").read_text(encoding="utf-8").splitlines()) == 2


@pytest.mark.parametrize("command", [["serve"], ["quickstart"]])
def test_what_needs_another_system_says_so(tmp_path, command) -> None:
    done = run(tmp_path, *command)
    assert done.returncode != 0
    assert done.stderr == f"error: `lightning-trainer {command[0]}` needs Linux or macOS\n"


@pytest.mark.parametrize(
    "command",
    [
        ["environments", "install", "frozenlake"],
        ["environments", "try", "frozenlake:4x4"],
        ["rollouts", "--environment", "worlds.py:World", "--policy", "p", "--evaluate", "before"],
    ],
)
def test_environments_say_so_before_anything_is_installed_or_started(tmp_path, command) -> None:
    # Before: one after the other, what else had to be installed, and then "pass_fds not supported on Windows."
    done = run(tmp_path, *command)
    assert done.returncode == 2
    assert done.stderr.startswith("error: environments with processes of their own need Linux or macOS: use WSL, or ")
    assert not any(tmp_path.rglob("pyvenv.cfg"))


def test_where_no_daemon_runs_its_commands_say_that(tmp_path) -> None:
    done = run(tmp_path, "health")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("no daemon runs on ")

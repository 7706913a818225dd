"""What docs/dashboard.md shows works as it stands."""

import re
import shlex
import shutil
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import httpx
import pytest
from fastapi.routing import APIRoute
from typer.testing import CliRunner

from lightning_trainer.cli.app import app
from lightning_trainer.store.scan import read_only
from lightning_trainer.store.tables import attempts as attempt_table
from lightning_trainer.store.tables import pauses
from lightning_trainer.types import RolloutMode

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "dashboard.md").read_text(encoding="utf-8")


def commands(block: int) -> list[str]:
    return re.findall(r"^```bash\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)[block].splitlines()


@pytest.fixture
async def run(tmp_path, monkeypatch):
    example = import_module("benchmarks.dashboard.example_run")
    (tmp_path / "lightning.toml").write_text(example.config_text(token="a-token-of-this-test"))
    await example.fill(tmp_path, steps=4, now_ns=1_790_000_000_000_000_000)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(command: str, expect: int = 0) -> str:
    done = CliRunner().invoke(app, shlex.split(command)[1:], catch_exceptions=False)
    assert done.exit_code == expect, done.output
    return done.output.replace("\n", " ")


def test_the_commands_that_act_work_as_they_stand(run):
    roll_back, promote, *others = commands(2)
    rolled_back, (paused, resumed, labeled, dropped) = invoke(roll_back), (invoke(command) for command in others)
    assert "no daemon runs here, and a version is published by one" in invoke(promote, expect=2)
    assert "support is at version 3 when the daemon starts next" in rolled_back
    assert "training of support is paused when the daemon starts next" in paused
    assert "training of support goes on when the daemon starts next" in resumed
    assert "rollout r-new-2: reward reward = 0.75 and note stored" in labeled
    assert "will not be trained" in dropped
    assert "was not paused" in invoke("lightning-trainer resume")
    invoke('lightning-trainer pause --reason "later"')
    with read_only(run / ".lightning" / "lightning.sqlite") as connection:
        assert pauses.reason_of(connection, "support") == "later"
        (attempt,) = attempt_table.select(connection, rollout_id="r-new-1")
        assert attempt.mode is RolloutMode.DROPPED
    explained = invoke("lightning-trainer explain r-new-2")
    assert "right order, wrong tone" in explained
    assert "a person" in explained


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("lightning-trainer label r-new-2", "give a reward, a note, or both"),
        ("lightning-trainer label nobody --reward 1", "there is no rollout 'nobody' in the store"),
        ("lightning-trainer label r-new-2 --attempt other --reward 1", "has no attempt 'other'"),
        ("lightning-trainer label r-new-2 --reward nan", "a reward is a number between"),
        ("lightning-trainer pause --policy sales", "name one of the policies support; 'sales' is not one of them"),
        ("lightning-trainer ui --state-dir nowhere", "there is no store"),
        ("lightning-trainer ui --state-dir .lightning --beside nowhere", "there is no store"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(run, command, sentence):
    assert sentence in invoke(command, expect=2)


@pytest.mark.process
def test_a_stopped_run_is_shown_read_only_and_left_as_it_was(run):
    before = (run / ".lightning" / "lightning.sqlite").read_bytes()
    (command,) = commands(1)
    line = [sys.executable, "-m", "lightning_trainer", *shlex.split(command)[1:], "--port", "0"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, cwd=run) as process:
        try:
            assert process.stdout is not None
            url = re.search(r"http://[\d.:]+/", process.stdout.readline())
            assert url is not None
            assert "prints the token to log in" in process.stdout.readline()
            assert httpx.get(url[0]).status_code == 401
            bearer = {"authorization": "Bearer a-token-of-this-test"}
            shown = ["rollouts", "rollout?id=r-003-0-1", "versions", "charts", "costs", "agents", "setup", "metrics"]
            for path in ("", *shown):
                page = httpx.get(url[0] + path, headers=bearer, timeout=30)
                assert page.status_code == 200, page.text
            assert "stopped run, read only" in httpx.get(url[0], headers=bearer).text
            refused = httpx.post(url[0] + "do/drop", data={"rollout": "r-new-0"}, headers=bearer)
            assert (refused.status_code, "shown read only" in refused.text) == (409, True)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(20)
    assert (run / ".lightning" / "lightning.sqlite").read_bytes() == before


def test_the_pictures_and_files_that_it_shows_are_there_and_small():
    from benchmarks.dashboard.screenshots import SHOWN

    shown = re.findall(r"\]\(((?:images/)?[\w.-]+\.(?:png|json))\)", PAGE)
    pictures = {name for name in shown if name.endswith(".png")}
    assert pictures == {f"images/{file.name}" for file in (ROOT / "docs" / "images").glob("dashboard-*.png")}
    assert len(pictures) == len(SHOWN)
    for name in shown:
        assert 1_000 < (ROOT / "docs" / name).stat().st_size < 250_000
    assert "](docs/images/dashboard-overview.png)" in (ROOT / "README.md").read_text(encoding="utf-8")[:300]


def test_the_routes_that_it_names_are_the_daemons(tmp_path):
    from lightning_trainer.config import Config
    from lightning_trainer.daemon.service import Daemon
    from lightning_trainer.daemon.watching.notifying_store import NotifyingStore
    from lightning_trainer.store import SqliteStore

    store = SqliteStore(tmp_path / "lightning.sqlite")
    app = Daemon(Config())._app(store, NotifyingStore(store), [], None)
    routes = {route.path for route in app.routes if isinstance(route, APIRoute)}
    for path in (
        "/metrics",
        "/lightning/policies/{name}/promote",
        "/lightning/policies/{name}/pause",
        "/lightning/policies/{name}/resume",
    ):
        assert path in routes
    assert "/lightning/rollouts/{rollout_id:path}/labels" in routes


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")
def test_the_pictures_are_made_by_a_command_that_there_is():
    done = subprocess.run(["make", "-n", "screenshots"], cwd=ROOT, capture_output=True, text=True)
    assert "benchmarks.dashboard.screenshots" in done.stdout

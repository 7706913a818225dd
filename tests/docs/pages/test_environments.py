"""docs/environments.md: its environment is one that a stranger could have written, and its commands are taken."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from lightning_trainer.cli.app import app
from lightning_trainer.cli.environments import rollouts
from lightning_trainer.config import Config
from lightning_trainer.environments import Task
from lightning_trainer.environments.limits import Limits
from lightning_trainer.environments.registry import DEFAULT_FOLDER, KNOWN
from lightning_trainer.environments.session import Session
from lightning_trainer.rollouts import Runner

ROOT = Path(__file__).parents[3]
DOCUMENT = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ lightning-trainer (.*)$", DOCUMENT, flags=re.MULTILINE)
PROGRAMS = re.findall(r"^```python\n(.*?)^```", DOCUMENT, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    (tmp_path / "guess.py").write_text(PROGRAMS[0])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_environment_has_fifteen_lines() -> None:
    assert len([line for line in PROGRAMS[0].splitlines() if line.strip()]) <= 15


@pytest.mark.process
def test_the_environment_is_played_by_name_and_by_class(folder: Path, monkeypatch) -> None:
    monkeypatch.setattr("lightning_trainer.rollouts.daemon_client.DaemonClient.wait_until_there", lambda _: None)

    def bisecting(session: Session) -> None:
        low, high = 1, 20
        while not session.done:
            guess = (low + high) // 2
            low, high = (guess + 1, high) if session.say(str(guess)) == "higher" else (low, guess - 1)

    names: dict = {}
    exec(PROGRAMS[0], names)
    options = {"policy": "game", "agent": bisecting, "endpoint": "http://127.0.0.1:9"}
    for environment in ("guess.py:Guess", names["Guess"]):
        with Runner.from_environment(environment, **options) as runner:
            assert [attempt.reward for attempt in runner.evaluate_held_out(8)] == [1.0] * 8


def test_the_pages_of_ones_own_have_what_pages_need() -> None:
    names: dict = {}
    (program,) = [one for one in PROGRAMS if "class Shop" in one]
    exec(program, names)
    shop = names["Shop"]()
    goals = {shop.open(Task("web", "1", seed=seed)) for seed in range(9)}
    assert goals == {(f"Order a {thing}.", "http://127.0.0.1:8000/") for thing in ("lamp", "chair")}
    assert [shop.reward(lambda script, one=one: one) for one in (None, shop.wanted, "sofa")] == [None, 1.0, 0.0]


def test_the_programs_compile() -> None:
    for program in PROGRAMS:
        compile(program, "environments.md", "exec")


def test_the_reward_function_scores_a_row_of_verls(tmp_path: Path, monkeypatch) -> None:
    (function,) = [one for one in PROGRAMS if "def compute_score" in one]
    (command,) = [one for one in COMMANDS if one.startswith("environments try rewards.py")]
    (tmp_path / "rewards.py").write_text(function)
    row = {
        "data_source": "sums",
        "prompt": [{"role": "user", "content": "What is 2 and 2?"}],
        "reward_model": {"style": "rule", "ground_truth": "4"},
        "extra_info": {"split": "train", "index": 0},
    }
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "train.parquet")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, shlex.split(command), env={"COLUMNS": "400"}, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "What is 2 and 2?" in done.stdout
    assert "-- reward 1, format 1 so far, done" in done.stdout


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("rollouts")])
def test_rollouts_takes_it(command: str, monkeypatch) -> None:
    taken: list = []
    monkeypatch.setattr(rollouts, "play", lambda *options: taken.append(options))
    done = CliRunner().invoke(app, shlex.split(command), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    ((options, play),) = taken
    assert play.environment in ("frozenlake:4x4", "guess.py:Guess", "rewards.py:compute_score", "mcp")
    assert (options.steps is None) != (options.evaluate is None)


@pytest.mark.process
@pytest.mark.parametrize("command", [command for command in COMMANDS if "guess.py" in command and " try " in command])
def test_an_environment_of_ones_own_is_tried(command: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lightning_trainer", *shlex.split(command)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Guess my number" in done.stdout
    assert "reward 0, in" in done.stdout


def test_what_is_listed_has_every_name() -> None:
    done = CliRunner().invoke(app, ["environments", "list"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "frozenlake" in done.stdout


def test_the_section_is_accepted_and_shows_the_defaults() -> None:
    (section,) = re.findall(r"^```toml\n(.*?)^```", DOCUMENT, flags=re.MULTILINE | re.DOTALL)
    read = Config.model_validate(tomllib.loads(section)).environments
    assert read == Config().environments
    assert Limits(**read.model_dump(exclude={"folder"})) == Limits()
    assert read.folder == DEFAULT_FOLDER


def test_an_environment_that_is_not_installed_says_how_to(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["environments", "try", "frozenlake", "--folder", str(tmp_path)], env={"COLUMNS": "300"}
    )
    assert done.exit_code == 2
    assert "run: lightning-trainer environments install frozenlake" in done.stderr


def test_every_name_is_in_the_table() -> None:
    assert set(re.findall(r"^\| `([\w-]+)", DOCUMENT, flags=re.MULTILINE)) >= set(KNOWN)


@pytest.mark.process
@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("scenarios")])
def test_scenarios_are_made_as_it_says(command: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    here = command.replace("--out scenarios", f"--out {tmp_path}").replace("-- python", f"-- {sys.executable}")
    words = shlex.split(here)
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert len((tmp_path / "train.jsonl").read_text().splitlines()) == 200
    assert len((tmp_path / "held-out.jsonl").read_text().splitlines()) == 50


def test_a_file_of_tasks_is_refused_by_an_environment_that_reads_none(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"id": "easy", "level": 1}\n')
    for command in (
        "environments try gymnasium:Taxi-v4",
        "rollouts --environment gymnasium:Taxi-v4 --policy p --steps 1",
    ):
        done = CliRunner().invoke(app, [*command.split(), "--tasks", str(tasks)], env={"COLUMNS": "400"})
        assert done.exit_code == 2, command
        assert "the task 'easy' of a file means nothing to gymnasium:Taxi-v4" in done.stderr


@pytest.mark.process
def test_an_environment_that_holds_nothing_out_says_so_when_it_is_tried_and_evaluated(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("lightning_trainer.rollouts.daemon_client.DaemonClient.wait_until_there", lambda _: None)
    world = ROOT / "tests" / "lightning_trainer" / "environments" / "worlds.py"
    monkeypatch.chdir(tmp_path)
    evaluate = "--policy p --endpoint http://127.0.0.1:9 --evaluate held-out --count 2 -- true"
    for command in (f"environments try {world}:Alike", f"rollouts --environment {world}:Alike {evaluate}"):
        done = CliRunner().invoke(app, command.split(), env={"COLUMNS": "800"}, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        assert "worlds.py:Alike has too few different openings to hold any out" in done.stdout, command

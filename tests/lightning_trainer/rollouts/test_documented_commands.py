"""The commands of docs/rollouts.md are taken as they stand."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lightning_trainer.cli import rollouts
from lightning_trainer.cli.app import app
from lightning_trainer.cli.rollouts import Options
from lightning_trainer.rollouts import Runner

DOCUMENT = (Path(__file__).parents[3] / "docs" / "rollouts.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ lightning-trainer (rollouts .*)$", DOCUMENT, flags=re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_it_is_taken(command: str, monkeypatch) -> None:
    taken: list[Options] = []
    monkeypatch.setattr(rollouts, "rollouts", taken.append)
    done = CliRunner().invoke(app, shlex.split(command), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    (options,) = taken
    assert options.command == ("python", "agent.py")
    assert (options.steps is None) != (options.evaluate is None)


def test_there_are_two_of_them() -> None:
    assert len(COMMANDS) == 2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("", "say what the rollouts are for: --steps N to train, or --evaluate NAME"),
        ("--steps 1 --evaluate a", "say what the rollouts are for"),
        ("--steps 1 --endpoint nowhere", "the endpoint 'nowhere' is not an http(s) URL"),
        ("--steps 1", "cannot read the tasks none.jsonl"),
    ],
)
def test_a_mistake_is_one_sentence(options: str, sentence: str) -> None:
    command = f"rollouts --policy p --tasks none.jsonl {options} -- python agent.py"
    done = CliRunner().invoke(app, shlex.split(command), env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert sentence in done.stderr


def test_a_command_that_is_not_there_is_one_sentence() -> None:
    done = CliRunner().invoke(app, shlex.split("rollouts --policy p --tasks t --steps 1 -- no-such-program"))
    assert done.exit_code == 2
    assert "there is no command 'no-such-program' on PATH" in done.stderr


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ("", "p:python_agent.py:tasks.jsonl:0"),
        ("--seed 3", "p:python_agent.py:tasks.jsonl:3"),
        ("--run nightly", "nightly"),
    ],
)
def test_a_run_is_called_what_it_is_told_or_by_its_program_tasks_and_seed(options, name, tmp_path, monkeypatch) -> None:
    made: list[str] = []

    class NamedRunner(Runner):
        def evaluate(self, tasks, *, stage):
            made.append(self._run)
            return []

    monkeypatch.setattr(rollouts, "Runner", NamedRunner)
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"id": "a"}\n')
    command = f"rollouts --policy p --tasks {tasks} --evaluate e {options} -- python agent.py"
    done = CliRunner().invoke(app, shlex.split(command), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert made == [name]


def test_a_run_that_cannot_be_called_so_is_one_sentence(tmp_path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"id": "a"}\n')
    command = f"rollouts --policy p --tasks {tasks} --evaluate e --run a/b -- python agent.py"
    done = CliRunner().invoke(app, shlex.split(command), env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert "the run is called 'a/b'" in done.stderr

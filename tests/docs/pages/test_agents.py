"""The commands of docs/agents.md work as they stand, and its tables name what there is."""

import inspect
import re
import shlex
from pathlib import Path

import lightning_instrumentation as lt
from lightning_instrumentation.scope import Agent, current_agent
from typer.testing import CliRunner

from lightning_trainer.cli.app import app
from lightning_trainer.store import SqliteStore
from lightning_trainer.types import Fidelity

PAGE = (Path(__file__).parents[3] / "docs" / "agents.md").read_text(encoding="utf-8")


async def test_the_commands_work_as_they_stand(tmp_path, monkeypatch, recorded):
    async with SqliteStore(tmp_path / ".lightning" / "lightning.sqlite") as store:
        await store.append(recorded("openinference"))
    (tmp_path / "lightning.toml").write_text('[[policy]]\nname = "p"\nagents = ["*"]\nmodel = "random:tiny"\n')
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^lightning-trainer (.+)$", PAGE, flags=re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        done = CliRunner().invoke(app, shlex.split(command), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        assert "solver" in done.output


def test_the_block_of_code_runs_as_it_stands(monkeypatch, tmp_path):
    monkeypatch.setenv("LIGHTNING_SPOOL_DIR", str(tmp_path))
    monkeypatch.setenv("LIGHTNING_ENDPOINT", "http://127.0.0.1:9")
    (program,) = re.findall(r"^ *```python\n(.*?)```", PAGE, flags=re.MULTILINE | re.DOTALL)
    names = {"ask": lambda question: current_agent()}
    try:
        exec(inspect.cleandoc(program), names)
    finally:
        lt.shutdown(0.0)
    assert names["answer"] == Agent("support", "with")


def test_the_page_names_every_grade():
    for grade in Fidelity:
        assert f"| `{grade.value}` |" in PAGE

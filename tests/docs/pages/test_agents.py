"""The commands of docs/agents.md work as they stand, and its tables name what there is."""

import inspect
import re
import shlex
from dataclasses import replace
from pathlib import Path

import lightning_instrumentation as lt
from lightning_instrumentation import semconv
from lightning_instrumentation.scope import Agent, current_agent
from typer.testing import CliRunner

from lightning_trainer.cli.app import app
from lightning_trainer.ingest.reading import read_spans
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


async def test_spans_of_another_program_are_in_the_rollout_that_the_table_says(tmp_path, recorded):
    (section,) = re.findall(r"^### The rollout of other spans\n(.*?)^### ", PAGE, flags=re.MULTILINE | re.DOTALL)
    named = {semconv.ROLLOUT_ID: "r", semconv.ATTEMPT_ID: "a", semconv.TASK_ID: "t", semconv.GROUP_ID: "g"}
    named |= {semconv.ROLLOUT_MODE: "record", semconv.ROLLOUT_ROOT: True}
    assert set(re.findall(r"`(lightning\.[\w.]+)`", section)) == set(named)
    spans = recorded("openinference")
    parents = {span.parent_span_id for span in spans}
    above = next(span for span in spans if span.parent_span_id is None and span.span_id in parents)
    trace = [span for span in spans if span.trace_id == above.trace_id]
    spans = [replace(span, attributes={**span.attributes, **named}) if span is above else span for span in trace]
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        await store.append(spans)
        (attempt,) = await store.ended_attempts(mode="record")
    assert (attempt.rollout_id, attempt.attempt_id, attempt.task_id, attempt.group_id) == ("r", "a", "t", "g")
    calls = read_spans(spans).calls
    assert calls
    assert {(call.rollout_id, call.attempt_id) for call in calls} == {("r", "a")}

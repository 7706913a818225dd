"""The commands of docs/explain.md work as they stand, and its table names every cause that there is."""

import re
import shlex
from pathlib import Path

from lightning_instrumentation import semconv
from typer.testing import CliRunner

from lightning_trainer.cli.app import app
from lightning_trainer.explain.diagnoses import group
from lightning_trainer.store import SqliteStore
from lightning_trainer.types import Span

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "explain.md").read_text(encoding="utf-8")


ROOT_SPAN = (
    '{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "11111111111111111111111111111111", '
    '"spanId": "2222222222222222", "name": "rollout", "startTimeUnixNano": "1", "endTimeUnixNano": "2", "attributes": ['
    f'{{"key": "{semconv.ROLLOUT_ROOT}", "value": {{"boolValue": true}}}}, '
    f'{{"key": "{semconv.ROLLOUT_ID}", "value": {{"stringValue": "ROLLOUT"}}}}, '
    f'{{"key": "{semconv.ATTEMPT_ID}", "value": {{"stringValue": "a"}}}}]}}]}}]}}]}}\n'
)
COMMANDS = [shlex.split(command) for command in re.findall(r"^lightning-trainer (.+)$", PAGE, flags=re.MULTILINE)]


async def test_the_commands_work_as_they_stand(tmp_path, monkeypatch):
    about = {semconv.ROLLOUT_ROOT: True, semconv.ROLLOUT_ID: "ROLLOUT", semconv.ATTEMPT_ID: "a"}
    root = Span("1" * 32, "2" * 16, None, "rollout", 1, 2, about)
    async with SqliteStore(tmp_path / ".lightning" / "lightning.sqlite") as store:
        await store.begin_policy("p")
        await store.append([root])
    (tmp_path / "spans.jsonl").write_text(ROOT_SPAN)
    (tmp_path / "lightning.toml").write_text('[[policy]]\nname = "p"\nagents = ["*"]\nmodel = "random:tiny"\n')
    monkeypatch.chdir(tmp_path)
    stored, of_a_file = [CliRunner().invoke(app, command, catch_exceptions=False) for command in COMMANDS]
    assert stored.output.startswith("rollout ROLLOUT is not trained yet: no calls")
    assert of_a_file.output.startswith("rollout ROLLOUT would not be trained: no calls")
    assert (tmp_path / "tree.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_the_table_names_every_cause():
    files = (ROOT / "lightning_trainer" / "explain" / "diagnoses").rglob("*.py")
    named = {name for file in files for name in re.findall(r'Finding\(\s*"([^"]+)"', file.read_text(encoding="utf-8"))}
    named |= set(group._NAMES.values())
    rows = " ".join(line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| "))
    assert named
    assert sorted(name for name in named if name not in rows) == []

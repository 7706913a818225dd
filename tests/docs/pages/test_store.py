"""What docs/store.md shows works as it stands."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from lightning_instrumentation import semconv
from typer.testing import CliRunner

from lightning_trainer.cli.app import app
from lightning_trainer.config.store import StoreConfig
from lightning_trainer.store import SqliteStore
from lightning_trainer.types import Span

PAGE = (Path(__file__).parents[3] / "docs" / "store.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_the_settings_are_accepted_and_all_of_them_are_shown():
    (section,) = (tomllib.loads(block)["store"] for block in blocks("toml"))
    config = StoreConfig.model_validate(section)
    assert (config.retention_time, config.retention_size, config.retention_steps) == (30 * 86400, 20 * 2**30, 1000)
    assert set(section) == set(StoreConfig.model_fields)


async def _recorded(folder: Path) -> None:
    about = {semconv.ROLLOUT_ROOT: True, semconv.ROLLOUT_ID: "ROLLOUT", semconv.ATTEMPT_ID: "a"}
    async with SqliteStore(folder / ".lightning" / "lightning.sqlite") as store:
        await store.append([Span("1" * 32, "2" * 16, None, "rollout", 1, 2, about)])


@pytest.fixture
async def recorded(tmp_path, monkeypatch):
    await _recorded(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_commands_work_as_they_stand(recorded):
    outputs = []
    for command in (line for block in blocks("bash") for line in block.splitlines()):
        done = CliRunner().invoke(app, shlex.split(command)[1:])
        assert done.exit_code == 0, f"{command}: {done.output}"
        outputs.append(" ".join(done.output.split()))
    said = (
        "1 attempt will not be trained",
        "spans 1 none",
        "kept 1 spans, 1 attempts",
        "compacted:",
        "backed up 1 spans",
    )
    for sentence, output in zip((*said, "restored the backup of"), outputs, strict=True):
        assert sentence in output
    assert list((recorded / ".lightning").glob("lightning.sqlite.before-restore-*"))


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (("store", "restore", "nowhere"), "nowhere is not a backup"),
        (("store", "backup", "."), "already exists"),
        (("drop", "nobody"), "there is no rollout or group or step 'nobody' in the store"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(recorded, command, sentence):
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    assert sentence in " ".join(done.output.split())

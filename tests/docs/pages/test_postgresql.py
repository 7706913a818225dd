"""What docs/postgresql.md shows works as it stands, on a server of the session's own."""

import re
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest
from lightning_instrumentation import semconv
from typer.testing import CliRunner

from lightning_trainer.cli.app import app
from lightning_trainer.config.store import StoreConfig
from lightning_trainer.store import SqliteStore
from lightning_trainer.store.postgres.schema import MIGRATIONS
from lightning_trainer.types import Span

PAGE = (Path(__file__).parents[3] / "docs" / "postgresql.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_the_settings_are_accepted_and_the_password_is_shown_nowhere():
    (section,) = (tomllib.loads(block)["store"] for block in blocks("toml"))
    assert StoreConfig.model_validate(section).turn_s == 15
    secret = StoreConfig.model_validate({"url": "postgresql://me:s3cret@h/d"})
    assert "s3cret" not in f"{secret!r} {secret} {secret.model_dump()} {secret.model_dump_json()}"


def test_another_url_is_refused_without_being_repeated(tmp_path):
    (tmp_path / "lightning.toml").write_text('[store]\nurl = "mysql://me:s3cret@h/d"\n')
    done = CliRunner().invoke(app, ["store", "check", "--config", str(tmp_path / "lightning.toml")])
    assert done.exit_code == 2
    assert "store.url: it has to begin with postgresql://" in " ".join(done.output.split())
    assert "s3cret" not in done.output


@pytest.mark.skipif(
    shutil.which("pg_dump") is None, reason="there is no pg_dump here: apt-get install postgresql-client"
)
async def test_the_commands_work_as_they_stand(postgres, postgres_url, tmp_path, monkeypatch):
    about = {semconv.ROLLOUT_ROOT: True, semconv.ROLLOUT_ID: "r", semconv.ATTEMPT_ID: "a"}
    async with SqliteStore(tmp_path / ".lightning" / "lightning.sqlite") as store:
        await store.append([Span("1" * 32, "2" * 16, None, "rollout", 1, 2, about)])
    (tmp_path / "lightning.toml").write_text(f'[store]\nurl = "{postgres_url}"\n')
    monkeypatch.chdir(tmp_path)
    outputs = []
    commands = [line for block in blocks("bash") for line in block.splitlines() if line.startswith("lightning-trainer")]
    for command in commands:
        # Its own event loop: none of these commands uses one.
        done = CliRunner().invoke(app, shlex.split(command)[1:])
        assert done.exit_code == 0, f"{command}: {done.output}"
        outputs.append(" ".join(done.output.split()))
    said = ("1 spans, 1 attempts, 0 steps, 0 versions); all were read back alike", "spans 1 none", "backed up 1 spans")
    for sentence, output in zip((*said, "restored the backup of", "compacted:"), outputs, strict=True):
        assert sentence in output
    done = CliRunner().invoke(app, ["doctor", "--config", "lightning.toml"])
    assert f"schema {len(MIGRATIONS)}" in " ".join(done.output.split())
    (tmp_path / "wrong.toml").write_text(f'[store]\nurl = "{postgres.url(password="s3cret")}"\n')
    done = CliRunner().invoke(app, ["doctor", "--config", "wrong.toml"])
    assert "password authentication failed" in " ".join(done.output.split())
    assert "s3cret" not in done.output
    done = CliRunner().invoke(app, ["store", "repair"])
    assert "repair is for a SQLite file" in " ".join(done.output.split())

"""``prompts show`` of the store of a stopped daemon."""

import asyncio
import json

import pytest
from typer.testing import CliRunner

from lightning_trainer.cli.app import app
from lightning_trainer.store import SqliteStore, prompts
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.prompts import root_of

DEFAULT = "Answer.\nBe polite.\n"


def made(connection: Connection) -> None:
    prompts.register(connection, "clerk", root_of(DEFAULT), DEFAULT, 1)
    prompts.add(connection, "clerk", "Answer.\nBe brief.\n", 0, "person", None, 2)


@pytest.fixture
def show(tmp_path, monkeypatch):
    async def fill() -> None:
        async with SqliteStore(tmp_path / "state" / "lightning.sqlite") as store:
            await store.write(made)

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LIGHTNING_ENDPOINT", raising=False)
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "lightning.toml").write_text('[daemon]\nport = 0\nstate_dir = "state"\n')
    asyncio.run(fill())

    def said(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["prompts", "show", *arguments])
        assert done.exit_code == 0, (done.output, done.exception)
        return done.output

    return said


def test_what_a_version_changes_is_in_its_json(show):
    changes = show("clerk@v1", "--diff")
    assert "-Be polite." in changes
    assert "+Be brief." in changes
    alone, told = (json.loads(show("clerk@v1", "--json", *option)) for option in ((), ("--diff",)))
    assert f"{told.pop('diff')}\n" == changes
    assert told == alone
    assert json.loads(show("clerk@v0", "--json", "--diff"))["diff"] is None, "it has no parent"


def test_where_no_attempt_was_live_it_says_what_one_is(show):
    assert "no live attempt has asked for 'clerk' yet" in show("clerk", "--live")
    assert "lt.rollout" in show("clerk", "--live")
    assert "live attempt" not in show("clerk")
    assert {one["live"] for one in json.loads(show("clerk", "--live", "--json"))} == {None}

"""``prompts list``, ``show``, ``use`` and ``add`` of a daemon elsewhere: no configuration here, and its token alone."""

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lightning_trainer.cli.prompts import remote
from lightning_trainer.cli.prompts.commands import prompts as commands
from lightning_trainer.store import SqliteStore, prompts
from lightning_trainer.store.prompts import root_of

pytestmark = pytest.mark.process
DEFAULT = "Solve {task}."


async def registered(state: Path) -> None:
    async with SqliteStore(state / "lightning.sqlite") as store:
        await store.write(lambda connection: prompts.register(connection, "clerk", root_of(DEFAULT), DEFAULT, 1))


@pytest.fixture(scope="module")
def url(serve, tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "state").mkdir(mode=0o700)
    asyncio.run(registered(folder / "state"))
    return serve(folder, "")


def said(*arguments: str, status: int = 0) -> str:
    done = CliRunner().invoke(commands, arguments, env={"COLUMNS": "200"})
    assert done.exit_code == status, (done.output, done.exception)
    return " ".join(done.output.split())


def test_a_daemon_elsewhere_is_asked_for_everything(here, url, monkeypatch):
    monkeypatch.setattr(remote, "_PAGE", 2)
    at = ("--endpoint", url)
    for number, text in enumerate(("Solve {task} well.", "Solve {task} fast."), 1):
        (here / "text.txt").write_text(text)
        told = said("add", "clerk", "text.txt", "--reason", "mine", *at)
        assert (
            f"this is clerk@v{number}; serve it with: lightning-trainer prompts use clerk@v{number} --endpoint" in told
        )
    assert "within ten seconds" in said("use", "clerk@v2", *at)
    assert "clerk 3 v2" in said("list", *at)
    table = said("show", "clerk", *at)
    assert "v0 retired code" in table
    assert "v2 v0 live person" in table
    assert "live reward (95 %)" in said("show", "clerk", "--live", *at)
    assert "+Solve {task} well." in said("show", "clerk@v1", "--diff", *at)
    monkeypatch.setenv("LIGHTNING_ENDPOINT", url)
    assert said("show", "clerk@v2") == "Solve {task} fast."
    assert [one["version"] for one in json.loads(said("show", "clerk", "--json"))] == [0, 1, 2]
    assert not (here / ".lightning").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("use", "clerk@v9"), "prompt 'clerk' has no version 9"),
        (("show", "clerk@v9"), "prompt 'clerk' has no version 9"),
        (("show", "cook"), "there is no prompt 'cook'"),
        (("list",), "set LIGHTNING_TOKEN to what `lightning-trainer token` prints where it runs"),
    ],
)
def test_what_is_wrong_is_one_sentence(here, url, monkeypatch, arguments, sentence):
    if arguments == ("list",):
        monkeypatch.setenv("LIGHTNING_TOKEN", "of-another-daemon-altogether")
    assert sentence in said(*arguments, "--endpoint", url, status=2)

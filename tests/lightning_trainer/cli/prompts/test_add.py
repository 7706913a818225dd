"""``prompts add``, into the store of a stopped daemon."""

import asyncio

import pytest

from lightning_trainer.cli.prompts.changing import add_version
from lightning_trainer.errors import PromptError
from lightning_trainer.store import SqliteStore, prompts
from lightning_trainer.store.prompts import PromptVersion, root_of

SECRET = "sk-proj-abcdEFGH1234567890abcdEFGH1234567890abcdEFGH12345678"
DEFAULT = "Solve {task}.\n\n"


async def registered(folder) -> None:
    async with SqliteStore(folder / "lightning.sqlite") as store:
        await store.write(lambda connection: prompts.register(connection, "clerk", root_of(DEFAULT), DEFAULT, 1))


async def kept(folder) -> list[PromptVersion]:
    async with SqliteStore(folder / "lightning.sqlite") as store:
        return await store.scan(lambda connection: prompts.select(connection, "clerk"))


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lightning.toml").write_text('[daemon]\nstate_dir = "state"\nredact = ["emails"]\n')
    (tmp_path / "state").mkdir()
    asyncio.run(registered(tmp_path / "state"))
    return tmp_path / "text.txt"


def test_a_text_ends_as_its_parent_does_and_what_breaks_the_program_is_said(file, capsys):
    for text in ("\ufeffSolve {task} well.\n", "Solve it.\n"):
        file.write_text(text, encoding="utf-8")
        add_version(None, "clerk", file, None)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("this is clerk@v1; serve it with")
    assert said[1] == "careful, the program may fail with this text where it works with v0: it lacks {task}"
    assert said[2].startswith("this is clerk@v2; serve it with")
    texts = [one.text for one in asyncio.run(kept(file.parent / "state"))]
    assert texts[1:] == ["Solve {task} well.\n\n", "Solve it.\n\n"]


@pytest.mark.parametrize("secret", [SECRET, "ana@example.com"])
def test_what_the_daemon_would_redact_gets_into_its_store_in_no_text_and_no_reason(file, secret):
    file.write_text(f"Solve {{task}} with {secret}.\n")
    with pytest.raises(
        PromptError, match=r"version of prompt 'clerk' is not kept, as \[daemon\] redact would change it"
    ):
        add_version(None, "clerk", file, None)
    file.write_text("Solve {task} well.\n")
    add_version(None, "clerk", file, f"as {secret} said")
    _, added = asyncio.run(kept(file.parent / "state"))
    assert added.text == "Solve {task} well.\n\n"
    assert added.reason is not None
    assert added.reason.startswith("as [redacted")
    assert secret not in added.reason

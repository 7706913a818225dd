"""``prompts add``, into the store of a stopped daemon."""

import asyncio

from lightning_trainer.cli.prompts.changing import add_version
from lightning_trainer.store import SqliteStore, prompts
from lightning_trainer.store.prompts import root_of

DEFAULT = "Solve {task}.\n\n"


async def registered(folder) -> None:
    async with SqliteStore(folder / "lightning.sqlite") as store:
        await store.write(lambda connection: prompts.register(connection, "clerk", root_of(DEFAULT), DEFAULT, 1))


async def texts(folder) -> list[str]:
    async with SqliteStore(folder / "lightning.sqlite") as store:
        return [one.text for one in await store.scan(lambda connection: prompts.select(connection, "clerk"))]


def test_a_text_ends_as_its_parent_does_and_what_breaks_the_program_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lightning.toml").write_text('[daemon]\nstate_dir = "state"\n')
    (tmp_path / "state").mkdir()
    asyncio.run(registered(tmp_path / "state"))
    file = tmp_path / "text.txt"
    for text in ("\ufeffSolve {task} well.\n", "Solve it.\n"):
        file.write_text(text, encoding="utf-8")
        add_version(None, "clerk", file, None)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("this is clerk@v1; serve it with")
    assert said[1] == "careful, the program may fail with this text where it works with v0: it lacks {task}"
    assert said[2].startswith("this is clerk@v2; serve it with")
    assert asyncio.run(texts(tmp_path / "state"))[1:] == ["Solve {task} well.\n\n", "Solve it.\n\n"]

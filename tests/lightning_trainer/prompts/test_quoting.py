"""Which versions of prompts have words of attempts that are forgotten."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from lightning_instrumentation import semconv

from lightning_trainer.cli.daemon.feedback import forget
from lightning_trainer.config import Config
from lightning_trainer.daemon.api.feedback import feedback_api
from lightning_trainer.prompts.quoting import quoting
from lightning_trainer.store import SqliteStore, prompts
from lightning_trainer.store.prompts import root_of
from tests.lightning_trainer.judges.scripted import recorded_attempt  # pyright: ignore[reportMissingImports]

DEFAULT = "You calculate. It is forbidden to guess."
QUOTED = ["It is 6, as Ann Lee of Elm Street said.", json.dumps({"sum": 6}), "Yes."]


@pytest.fixture
async def store(tmp_path: Path):
    async with SqliteStore(tmp_path / "lightning.sqlite") as opened:
        for name, said in (("a", QUOTED[0]), ("b", QUOTED[1]), ("c", QUOTED[2])):
            question = "It is forbidden to guess.\n  What of parcel 77?" if name == "c" else "What is 2 * 3?"
            await opened.append(recorded_attempt(name, [said], question=question))
        yield opened


async def added(store: SqliteStore, *texts: str, reason: str | None = None) -> None:
    def write(connection):
        prompts.register(connection, "clerk", root_of(DEFAULT), DEFAULT, 1)
        for text in texts:
            prompts.add(connection, "clerk", f"{DEFAULT}\n{text}", 0, "examples", reason, 2)

    await store.write(write)


async def quoted_by(store: SqliteStore, *attempts: str) -> list[str]:
    return await store.scan(lambda connection: quoting(connection, attempts))


async def test_a_version_that_shows_an_attempt_is_found_whatever_stands_before_its_words(store):
    await added(
        store, f"<example>\nuser: What is 2 * 3?\nyou: {QUOTED[0]}\n</example>", 'you: {{"sum": 6}}', "Be brief."
    )
    assert await quoted_by(store, "a") == ["clerk@v1"]
    assert await quoted_by(store, "b") == ["clerk@v1", "clerk@v2"], "both attempts were asked the same"
    assert await quoted_by(store, "none") == []


async def test_a_reason_that_quotes_is_found_and_what_the_code_says_itself_is_not(store):
    await added(store, "Yes. Guess.")
    assert await quoted_by(store, "c") == []
    await added(store, "Look it up.", reason="It did not know parcels: 'What of parcel 77?'")
    assert await quoted_by(store, "c") == ["clerk@v2"]


async def test_what_is_forgotten_is_answered_with_the_versions_that_have_its_words(store):
    await added(store, f"you: {QUOTED[0]}")
    (rollout,) = {one.attributes[semconv.ROLLOUT_ID] for one in await store.spans_of_attempts(["a"])}
    app = FastAPI()
    app.include_router(feedback_api(store, Config().feedback))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://daemon") as client:
        done = (await client.post("/lightning/forget", json={"rollout": rollout})).json()
    assert (done["attempts"], done["quoted_by"]) == (1, ["clerk@v1"])
    assert await store.spans_of_attempts(["a"]) == []


async def test_the_command_names_them(store, tmp_path, monkeypatch, capsys):
    await added(store, f"you: {QUOTED[0]}")
    (rollout,) = {one.attributes[semconv.ROLLOUT_ID] for one in await store.spans_of_attempts(["a"])}
    await store.close()
    (tmp_path / "lightning.toml").write_text('[daemon]\nstate_dir = "."\n')
    monkeypatch.chdir(tmp_path)
    await asyncio.to_thread(forget, None, rollout=rollout)
    assert "versions of prompts that have its words, and stay: clerk@v1; see" in capsys.readouterr().out

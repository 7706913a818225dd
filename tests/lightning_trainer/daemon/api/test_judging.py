"""``POST /lightning/judge``: what it refuses, and a result that comes at the end of a stream."""

import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from lightning_trainer.config import Config
from lightning_trainer.daemon.api import judging
from lightning_trainer.daemon.service import Daemon
from lightning_trainer.daemon.watching.notifying_store import NotifyingStore
from lightning_trainer.judges.kinds.pairwise import PairwiseJudge
from lightning_trainer.store import SqliteStore

TOKEN = "a-token-of-the-tests"
_JUDGE = {"name": "polite", "kind": "program", "command": ["true"]}
_PAIRS = {"name": "pairs", "kind": "pairwise", "model": "m"}


@pytest.fixture
async def client(tmp_path, attempt_spans) -> AsyncIterator[httpx.AsyncClient]:
    config = Config.model_validate({"judge": [_JUDGE, _PAIRS]})
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        await store.append(attempt_spans("a", [1], 10**18))
        app = Daemon(config)._app(store, NotifyingStore(store), [], TOKEN)
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app),
            base_url="http://127.0.0.1:8321",
            headers={"authorization": f"Bearer {TOKEN}"},
        ) as opened:
            yield opened


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        ({"judge": "rude", "names": ["r-a"]}, 422, "there is no [[judge]] 'rude'"),
        ({"judge": "polite"}, 422, "name rollouts, tasks or groups to judge"),
        ({"judge": "polite", "names": ["r-a"], "shuffle": True}, 422, "it goes with again"),
        ({"judge": "polite", "names": ["r"] * 1001}, 422, "names"),
        ({"judge": "polite", "names": ["r" * 513]}, 422, "names.0"),
        ({"judge": "polite", "names": ["group-?"]}, 404, "there is no rollout, attempt, task or group 'group-?'"),
    ],
)
async def test_what_cannot_be_judged_is_one_sentence(client, body, status, sentence) -> None:
    answer = await client.post(judging.JUDGE_PATH, json=body)
    assert (answer.status_code, sentence in answer.json()["error"]["message"]) == (status, True), answer.text


async def test_it_needs_the_token(client) -> None:
    answer = await client.post(judging.JUDGE_PATH, json={"judge": "polite"}, headers={"authorization": "Bearer no"})
    assert answer.status_code == 401


async def test_only_some_are_judged_at_once_and_one_that_ended_makes_room(client, monkeypatch) -> None:
    body: dict[str, Any] = {"judge": "polite", "names": ["r-a"]}
    monkeypatch.setattr(judging, "_AT_ONCE", 1)
    for again in (body, {**body, "names": ["r-z"]}, body):
        answer = await client.post(judging.JUDGE_PATH, json=again)
        assert answer.status_code in (200, 404)
    last = json.loads(answer.text.splitlines()[-1])
    assert last["done"]["kept"] == 0
    assert [(one["attempt_id"], one["value"]) for one in last["done"]["judged"]] == [("a", None)]
    assert answer.headers["content-type"] == "application/jsonl"
    # Before: nginx kept the lines until a few kilobytes had come, and a command that heard nothing gave up
    assert (answer.headers["x-accel-buffering"], answer.headers["cache-control"]) == ("no", "no-store")
    monkeypatch.setattr(judging, "_AT_ONCE", 0)
    assert (await client.post(judging.JUDGE_PATH, json=body)).status_code == 429


async def test_an_error_in_the_middle_is_the_last_line(client, monkeypatch) -> None:
    async def fails(*_: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(judging.ByHand, "judge", fails)
    answer = await client.post(judging.JUDGE_PATH, json={"judge": "polite", "names": ["r-a"]})
    assert json.loads(answer.text.splitlines()[-1]) == {"error": "OSError: the disk is gone"}


async def test_questions_are_written_beside_the_daemons_loop(client, monkeypatch) -> None:
    # Before: for as long as the pairs of a large group took to write, no call was answered
    written_by: list[threading.Thread] = []

    def write(*_: object) -> list[str]:
        written_by.append(threading.current_thread())
        return ["Which is better?"]

    monkeypatch.setattr(PairwiseJudge, "questions", write)
    monkeypatch.setattr(PairwiseJudge, "question", lambda *_: "Which is better?")
    body = {"judge": "pairs", "names": ["r-a"], "dry_run": True}
    answer = await client.post(judging.JUDGE_PATH, json=body)
    assert json.loads(answer.text.splitlines()[-1])["done"]["questions"] == 1
    assert written_by != [threading.main_thread()]

"""The daemon's token: asked of everyone where it is set, of nobody where it is not."""

import re
from pathlib import Path

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI

from lightning_trainer.config.judges import GroupConfig
from lightning_trainer.errors import JudgeError
from lightning_trainer.gateway.auth import require_token
from lightning_trainer.judges.models.budget import Budget
from lightning_trainer.judges.models.client import ModelClient
from lightning_trainer.judges.models.wire import Request

REWARDS = (Path(__file__).parents[3] / "docs" / "rewards.md").read_text(encoding="utf-8")


def _client(token: str | None) -> httpx.AsyncClient:
    router, app = APIRouter(), FastAPI()
    router.get("/")(lambda: "in")
    app.include_router(router, dependencies=[Depends(require_token(token))])
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://daemon")


@pytest.mark.parametrize(
    "given", [None, "Bearer", "Bearer wrong", "Basic s3cret-s3cret-s3", "s3cret-s3cret-s3", "Bearer ü"]
)
async def test_without_the_token_nobody_comes_in(given: str | None) -> None:
    headers = [] if given is None else [(b"authorization", given.encode())]
    answer = await _client("s3cret-s3cret-s3").get("/", headers=headers)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert "s3cret" not in answer.text


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
async def test_with_the_token_everyone_comes_in(scheme: str) -> None:
    headers = {"authorization": f"{scheme} s3cret-s3cret-s3"}
    assert (await _client("s3cret-s3cret-s3").get("/", headers=headers)).status_code == 200


async def test_where_no_token_is_set_none_is_asked_for() -> None:
    assert (await _client(None).get("/")).status_code == 200


async def _asked(url: str, model: str, api_key_env: str | None) -> str:
    judge = GroupConfig(name="own", kind="group", base_url=f"{url}/v1", model=model, api_key_env=api_key_env)
    client = ModelClient(judge)
    try:
        return (await client.ask(Request("You judge.", (("user", "Which is better?"),), {}, 16, 0), Budget())).text
    finally:
        await client.close()


async def test_a_judge_asks_a_policy_of_this_daemon_with_the_key_that_the_page_names(open_gateway, monkeypatch) -> None:
    (row,) = (line for line in REWARDS.splitlines() if line.startswith("| `base_url` |"))
    (variable,) = re.findall(r'`api_key_env = "(\w+)"`', row)
    monkeypatch.setenv(variable, "s3cret-s3cret-s3")
    async with open_gateway(token="s3cret-s3cret-s3") as gateway:
        with pytest.raises(JudgeError, match=r"refused \(HTTP 401.*the daemon's token is missing or wrong"):
            await _asked(gateway.url, "sql", None)
        assert await _asked(gateway.url, "sql", variable)

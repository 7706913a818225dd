"""The daemon's token: asked of everyone where it is set, of nobody where it is not."""

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI

from lightning_trainer.gateway.auth import require_token


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

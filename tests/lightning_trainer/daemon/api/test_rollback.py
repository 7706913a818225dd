"""``POST /lightning/policies/{name}/rollback``: every refusal is a sentence with a status."""

import asyncio

import httpx
import pytest
from fastapi import Depends, FastAPI

from lightning_trainer.daemon.api.rollback import RollbackRequests, rollback_router
from lightning_trainer.errors import EngineError, RollbackError
from lightning_trainer.gateway.auth import require_token

TOKEN = "a token of sixteen"


@pytest.fixture
def requests() -> RollbackRequests:
    return RollbackRequests(wake=asyncio.Event())


@pytest.fixture
async def http(requests):
    app = FastAPI()
    app.include_router(rollback_router({"p": requests}), dependencies=[Depends(require_token(TOKEN))])
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://daemon", headers=headers) as http:
        yield http


async def answer_of_loop(requests: RollbackRequests, error: Exception | None) -> None:
    await requests.wait()
    requests.end(error)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("error", "status"), [(None, 200), (RollbackError("no such version"), 409), (EngineError("it is away"), 503)]
)
async def test_the_answer_is_the_loops(http, requests, error, status):
    loop = asyncio.create_task(answer_of_loop(requests, error))
    answer = await http.post("/lightning/policies/p/rollback", json={"version": 3})
    await loop
    assert answer.status_code == status
    assert answer.json() == ({"policy": "p", "version": 3} if error is None else {"error": {"message": str(error)}})


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("p", {"version": -1}, 422),
        ("p", {"version": "3"}, 422),
        ("p", {"version": 2**63}, 422),
        ("p", {"version": 3, "force": True}, 422),
        ("q", {"version": 3}, 404),
    ],
)
async def test_what_is_wrong_is_refused_before_the_loop_hears_of_it(http, requests, path, body, status):
    answer = await http.post(f"/lightning/policies/{path}/rollback", json=body)
    assert answer.status_code == status
    assert requests.pending is None


async def test_without_the_token_nobody_rolls_back(http, requests):
    answer = await http.post("/lightning/policies/p/rollback", json={"version": 3}, headers={"authorization": ""})
    assert answer.status_code == 401
    assert requests.pending is None


async def test_a_promotion_is_asked_in_the_same_way(http, requests):
    asked = asyncio.create_task(http.post("/lightning/policies/p/promote", json={"version": 3}))
    await requests.wait()
    assert (requests.promotes(3), requests.promotes(2)) == (True, False)
    second = await http.post("/lightning/policies/p/rollback", json={"version": 2})
    assert "a promotion of version 3 is under way" in second.json()["error"]["message"]
    requests.end()
    assert (await asked).json() == {"policy": "p", "version": 3}
    missing = await http.post("/lightning/policies/q/promote", json={"version": 3})
    assert missing.status_code == 404


async def test_a_second_one_is_refused_while_the_first_is_under_way(http, requests):
    first = asyncio.create_task(http.post("/lightning/policies/p/rollback", json={"version": 3}))
    await requests.wait()
    second = await http.post("/lightning/policies/p/rollback", json={"version": 2})
    requests.end()
    assert (await first).status_code == 200
    assert second.status_code == 409
    assert "a rollback to version 3 is under way" in second.json()["error"]["message"]

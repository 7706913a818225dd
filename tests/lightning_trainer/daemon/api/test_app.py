"""The daemon's HTTP side is wired as the configuration says; engine and trainer are not asked for anything here."""

import asyncio
import re
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from lightning_instrumentation.access.proof import identity_proof, proof

from lightning_trainer.config import Config
from lightning_trainer.daemon.api.scoring import scoring, scoring_router
from lightning_trainer.daemon.service import Daemon
from lightning_trainer.daemon.watching.notifying_store import NotifyingStore
from lightning_trainer.errors import EngineError
from lightning_trainer.store import SqliteStore

_POLICY = {"name": "support", "agents": ["support"], "model": "random:tiny"}


@pytest.fixture
async def client(tmp_path):
    config = Config.model_validate(
        {"policy": [_POLICY], "gateway": {"max_body_bytes": 2**16}, "daemon": {"trusted_hosts": ["gpu-box"]}}
    )
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        app = Daemon(config)._app(store, NotifyingStore(store), [], None)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8321") as opened:
            yield opened


async def test_every_route_checks_the_host(client: httpx.AsyncClient) -> None:
    for path in ("/healthz", "/v1/models", "/lightning/status", "/lightning/policies/p/rollback", "/rollouts/r/end"):
        assert (await client.get(path, headers={"host": "evil.example"})).status_code == 421
    assert (await client.get("/healthz")).status_code == 200
    assert (await client.get("/healthz", headers={"host": "gpu-box:8321"})).status_code == 200


async def test_the_gateways_limits_are_those_of_the_configuration(client: httpx.AsyncClient) -> None:
    headers = {"content-type": "application/json"}
    for path in ("/v1/chat/completions", "/rollouts/r/v1/responses", "/rollouts/r/agents/support/v1/messages"):
        assert (await client.post(path, content=b" " * 70_000, headers=headers)).status_code == 413


async def test_a_daemon_that_stops_waits_for_its_calls_before_its_engines_end(tmp_path) -> None:
    daemon, stop, stack = Daemon(Config()), asyncio.Event(), AsyncExitStack()
    call = daemon._slots.take()
    stop.set()
    async with SqliteStore(tmp_path / "lightning.sqlite") as store, stack:
        app = daemon._app(store, NotifyingStore(store), [], None)
        ending = asyncio.create_task(daemon._run_policies(stack, stop))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8321") as opened:
            async with asyncio.timeout(10):
                while "is stopping" not in (await opened.post("/v1/chat/completions", json={"model": "p"})).text:
                    await asyncio.sleep(0)
            assert (await opened.get("/readyz")).status_code == 503
        assert not ending.done()
        call.release()
        await asyncio.wait_for(ending, 10)


async def test_rollouts_end_and_are_rewarded_here(client: httpx.AsyncClient) -> None:
    for path, body in (("reward", {"value": 1}), ("end", {})):
        answer = await client.post(f"/rollouts/unknown/{path}", json=body)
        assert (answer.status_code, "has been seen" in answer.json()["error"]["message"]) == (404, True)


async def test_every_route_but_health_the_challenge_and_the_style_sheet_needs_the_token(tmp_path) -> None:
    token = "token-of-this-test-0123"
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        app = Daemon(Config())._app(store, NotifyingStore(store), [], token, daemon="f" * 32)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8321") as client:
            open_to_all = set()
            for route in app.routes:
                assert isinstance(route, APIRoute)
                path = re.sub(r"\{[^}]*\}", "x", route.path)
                for method in route.methods:
                    if (await client.request(method, path)).status_code != 401:
                        open_to_all.add(path)
            assert open_to_all == {"/healthz", "/readyz", "/lightning/challenge", "/static/x"}
            nonce = "0" * 32
            answer = await client.get("/lightning/challenge", params={"nonce": nonce})
            assert answer.json() == {
                "proof": proof(token, nonce),
                "daemon": "f" * 32,
                "daemon_proof": identity_proof(token, nonce, "f" * 32),
            }
            for wrong in ("", "0" * 8, "0" * 200, token):
                refused = await client.get("/lightning/challenge", params={"nonce": wrong})
                assert refused.status_code in (400, 422)
                assert "proof" not in refused.json()


class Upstream:
    """The way to an engine that scores."""

    def __init__(self, error=None):
        self.error = error

    async def complete(self, path, body):
        if self.error is not None:
            raise self.error
        assert path == "/lightning/score"
        return SimpleNamespace(status=200, body=b'{"version": 7, "asked": ' + body + b"}")


async def test_scores_come_from_the_engine_of_the_policy_that_is_named() -> None:
    away = scoring(cast(Any, Upstream(EngineError("the engine is not running"))))
    app = FastAPI()
    app.include_router(scoring_router({"math": scoring(cast(Any, Upstream())), "away": away}))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8321") as client:

        async def ask(policy: str, token_ids: Any) -> httpx.Response:
            return await client.post("/lightning/score", json={"policy": policy, "token_ids": token_ids})

        assert (await ask("math", [[1, 2]])).json() == {
            "version": 7,
            "asked": {"policy": "math", "token_ids": [[1, 2]]},
        }
        unknown = await ask("art", [[1, 2]])
        assert (unknown.status_code, unknown.json()["error"]["message"]) == (
            404,
            "there is no policy 'art'; there are: math, away",
        )
        gone = await ask("away", [[1, 2]])
        assert (gone.status_code, gone.json()["error"]["message"]) == (503, "the engine is not running")
        assert (await ask("math", [["1"]])).status_code == 422
        assert (await ask("math", [[1]] * 513)).status_code == 422

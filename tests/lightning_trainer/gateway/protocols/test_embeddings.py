"""Embeddings are passed on to where the user says, with the daemon's key and nothing of the caller's, or refused."""

import asyncio

import httpx
import openai
import pytest
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ValidationError

from lightning_trainer.config import GatewayConfig
from lightning_trainer.gateway.embeddings import EmbeddingsServer, embeddings_router
from lightning_trainer.ingest.http.bodies import read_body

from ..conftest import serving

_ANSWER = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -0.25]}],
    "model": "e",
    "usage": {"prompt_tokens": 1, "total_tokens": 1},
}


class Server:
    """Answers as OpenAI does."""

    def __init__(self) -> None:
        self.url = ""
        self.seen: list[tuple[dict, dict]] = []
        self.answer: Response = JSONResponse(_ANSWER)
        self.app = FastAPI()
        self.app.post("/v1/embeddings")(self.embed)

    async def embed(self, request: Request) -> Response:
        self.seen.append((dict(request.headers), await request.json()))
        return self.answer


@pytest.fixture
async def server():
    made = Server()
    async with serving(made.app) as url:
        made.url = f"{url}/v1"
        yield made


def _router(server: EmbeddingsServer | None) -> APIRouter:
    return embeddings_router(server, max_body_bytes=2**16)


@pytest.mark.parametrize("base", ["/v1", "/rollouts/a%2Fb/v1", "/rollouts/r/agents/x/v1"])
async def test_they_are_passed_on_with_the_daemons_key(open_gateway, server, monkeypatch, base: str) -> None:
    monkeypatch.setenv("EMBEDDING_KEY", "sk-of-the-daemon")
    router = _router(EmbeddingsServer(server.url, "EMBEDDING_KEY"))
    async with open_gateway(beside=[router]) as gateway:
        client = openai.AsyncOpenAI(base_url=gateway.url + base, api_key="of-the-caller", max_retries=0)
        made = await client.embeddings.create(model="e", input="?", encoding_format="float")
    assert made.data[0].embedding == [0.5, -0.25]
    ((headers, body),) = server.seen
    assert (headers["authorization"], body["input"]) == ("Bearer sk-of-the-daemon", "?")
    assert "of-the-caller" not in str(headers)
    assert gateway.sink.spans == []


async def test_a_server_on_this_machine_is_asked_without_the_environments_proxy(
    open_gateway, server, monkeypatch
) -> None:
    # Before: 502, and the proxy had the key
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    router = _router(EmbeddingsServer(server.url))
    async with open_gateway(beside=[router]) as gateway, httpx.AsyncClient(trust_env=False) as client:
        answer = await client.post(f"{gateway.url}/v1/embeddings", json={"model": "e", "input": "?"})
    assert (answer.status_code, answer.json()) == (200, _ANSWER)


async def test_without_a_server_they_are_refused_in_one_sentence(open_gateway) -> None:
    # Before: "Error code: 404 - {'detail': 'Not Found'}"
    async with open_gateway(beside=[_router(None)]) as gateway:
        client = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.NotFoundError, match="embeddings are not served here: no policy makes them"):
            await client.embeddings.create(model="e", input="?")


async def test_a_body_that_stops_coming_is_not_the_servers_fault(open_gateway, server, monkeypatch) -> None:
    given_up = asyncio.Event()

    async def impatient(chunks, **limits) -> bytes:
        try:
            return await read_body(chunks, **limits, idle_s=0.05)
        finally:
            given_up.set()

    async def half():
        yield b"x"
        await given_up.wait()

    monkeypatch.setattr("lightning_trainer.gateway.embeddings.read_body", impatient)

    async with open_gateway(beside=[_router(EmbeddingsServer(server.url))]) as gateway:
        answer = await gateway.http.post("/v1/embeddings", content=half())
    assert (answer.status_code, "send it again" in answer.text) == (408, True)


async def test_the_servers_errors_are_the_callers_and_its_absence_is_said(open_gateway, server) -> None:
    server.answer = JSONResponse({"error": {"message": "no such model"}}, 404, headers={"retry-after": "7"})
    async with open_gateway(beside=[_router(EmbeddingsServer(server.url))]) as gateway:
        answer = await gateway.http.post("/v1/embeddings", json={"model": "e", "input": "?"})
        assert (answer.status_code, answer.headers["retry-after"]) == (404, "7")
        assert answer.json()["error"]["message"] == "no such model"
        assert "authorization" not in server.seen[0][0]
        too_long = await gateway.http.post("/v1/embeddings", content=b"x" * 2**17)
        assert too_long.status_code == 413
    async with open_gateway(beside=[_router(EmbeddingsServer("http://127.0.0.1:9/v1"))]) as gateway:
        answer = await gateway.http.post("/v1/embeddings", json={})
        assert answer.status_code == 502
        assert answer.json()["error"]["message"].startswith("the server of embeddings at http://127.0.0.1:9/v1 did not")
    async with open_gateway(beside=[_router(EmbeddingsServer(server.url, "A_KEY_THAT_NOBODY_SET"))]) as gateway:
        answer = await gateway.http.post("/v1/embeddings", json={})
        assert answer.json()["error"]["message"].startswith("the daemon's environment has no A_KEY_THAT_NOBODY_SET")


async def test_a_redirect_does_not_carry_the_key_elsewhere(open_gateway, server, monkeypatch) -> None:
    monkeypatch.setenv("EMBEDDING_KEY", "sk-of-the-daemon")
    server.answer = Response(status_code=307, headers={"location": f"{server.url}/embeddings?again"})
    async with open_gateway(beside=[_router(EmbeddingsServer(server.url, "EMBEDDING_KEY"))]) as gateway:
        assert (await gateway.http.post("/v1/embeddings", json={})).status_code == 307
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"embeddings": "api.openai.com"}, "embeddings is 'api.openai.com'; write a base URL"),
        ({"embeddings_key": "K"}, "embeddings_key = 'K' has no server"),
        ({"embeddings": "https://x/v1", "embeddings_key": "sk-123-secret"}, "embeddings_key"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(given: dict, sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        GatewayConfig.model_validate(given)

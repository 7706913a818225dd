"""A token for everything, a version on every response that may hold sampled tokens."""

import asyncio
from contextlib import asynccontextmanager

import httpx
import pytest

from lightning_trainer.serving.host.auth_middleware import AuthMiddleware
from lightning_trainer.serving.host.tokens.continuation import current_turn
from lightning_trainer.serving.host.weights.rw_lock import RwLock
from lightning_trainer.serving.host.weights.version_pinning import PinnedRequest, Sampler

TOKEN = "a-token-of-this-run"


class Backend:
    """An app that streams a response in two parts, the second when told to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.keeps = 0
        self.owners: list[str | None] = []
        self.second_part = asyncio.Event()
        self.second_part.set()
        self.started = asyncio.Event()

    async def __call__(self, scope, receive, send) -> None:
        turn = current_turn.get()
        self.owners.append(turn and turn.owner)
        if turn is not None:
            turn.kept_tokens = self.keeps
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": f"{self.name} ".encode(), "more_body": True})
        self.started.set()
        await self.second_part.wait()
        await send({"type": "http.response.body", "body": b"end"})


class House:
    def __init__(self) -> None:
        self.vllm, self.own, self.rw_lock, self.version = Backend("vllm"), Backend("own"), RwLock(), 7
        middleware = AuthMiddleware(self.vllm, self.own, self, TOKEN)
        transport = httpx.ASGITransport(app=middleware)  # pyright: ignore[reportArgumentType]
        self.client = httpx.AsyncClient(
            transport=transport, base_url="http://engine", headers={"Authorization": f"Bearer {TOKEN}"}
        )

    @asynccontextmanager
    async def pin(self, scope, receive):
        async with self.rw_lock.reading():
            yield PinnedRequest(receive, Sampler("math", self.version))


@pytest.fixture
async def house():
    house = House()
    async with house.client:
        yield house


@pytest.mark.parametrize("authorization", ["", "Bearer", f"Bearer {TOKEN}x", f"Basic {TOKEN}"])
@pytest.mark.parametrize("path", ["/v1/models", "/lightning/version", "/health"])
async def test_nothing_is_answered_without_the_token(house, authorization, path):
    response = await house.client.get(path, headers={"Authorization": authorization})
    assert response.status_code == 401
    assert "daemon" in response.json()["error"]["message"]


async def test_our_paths_go_to_our_app_and_the_rest_to_vllm(house):
    assert (await house.client.get("/lightning/version")).text == "own end"
    assert (await house.client.get("/v1/models")).text == "vllm end"


async def test_what_may_sample_says_which_version_did(house):
    response = await house.client.post("/v1/chat/completions", json={})
    assert response.headers["x-lightning-policy"] == "math"
    assert response.headers["x-lightning-policy-version"] == "7"


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/models"), ("POST", "/tokenize")])
async def test_what_cannot_sample_does_not_wait_for_a_publication(house, method, path):
    async def never() -> None:
        raise AssertionError

    async with asyncio.timeout(1), house.rw_lock.writing(1, never):
        response = await house.client.request(method, path)
    assert response.status_code == 200
    assert "x-lightning-policy-version" not in response.headers


async def test_a_stream_holds_its_version_to_the_last_byte(house):
    house.vllm.second_part.clear()
    request = asyncio.create_task(house.client.post("/v1/chat/completions", json={"stream": True}))
    await house.vllm.started.wait()
    assert house.rw_lock.running == 1

    async def publish() -> None:
        async with house.rw_lock.writing(5, never_aborted):
            house.version = 8

    async def never_aborted() -> None:
        raise AssertionError

    publication = asyncio.create_task(publish())
    await asyncio.sleep(0.02)
    assert house.version == 7
    house.vllm.second_part.set()
    assert (await request).headers["x-lightning-policy-version"] == "7"
    await publication
    assert (await house.client.post("/v1/completions", json={})).headers["x-lightning-policy-version"] == "8"


async def test_what_keeps_sampled_ids_says_how_many_and_knows_whose_they_are(house):
    owned = {"x-lightning-conversation": "attempt-1"}
    house.vllm.keeps = 42
    response = await house.client.post("/v1/chat/completions", json={}, headers=owned)
    assert response.headers["x-lightning-kept-tokens"] == "42"
    house.vllm.keeps = 0
    response = await house.client.post("/v1/chat/completions", json={}, headers=owned)
    assert "x-lightning-kept-tokens" not in response.headers
    await house.client.post("/v1/chat/completions", json={})
    assert house.vllm.owners == ["attempt-1", "attempt-1", None]


async def test_a_prompt_that_is_counted_has_the_ids_that_were_sampled(house):
    # Before: its words were tokenized anew, so the count was not that of the call itself
    await house.client.post("/tokenize", json={}, headers={"x-lightning-conversation": "attempt-1"})
    assert house.vllm.owners == ["attempt-1"]

"""Nobody waits for an engine that has ended, and weights are brought before they are offered."""

import asyncio
from pathlib import Path

import httpx
import pytest

from lightning_trainer.errors import EngineError
from lightning_trainer.serving.engine_client import Engine
from lightning_trainer.serving.settings import EngineSettings


class Served(Engine):
    """An engine whose answers a test gives."""

    def __init__(self, folder: Path, answer) -> None:
        super().__init__(EngineSettings(folder, ("math",), folder, folder))
        self._connect("http://127.0.0.1:1", "a token of this life")
        self._client = httpx.AsyncClient(
            base_url=self._base_url, headers=self.headers, transport=httpx.MockTransport(answer)
        )

    async def start(self) -> None: ...

    async def ready(self, timeout_s: float) -> None: ...

    async def stop(self) -> None:
        await self._disconnect()

    @property
    def pid(self) -> int | None:
        return 1


async def test_a_publication_waits_for_running_requests_and_not_for_an_engine_that_is_gone(tmp_path, publication):
    asked = asyncio.Event()

    async def never(request: httpx.Request) -> httpx.Response:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError("it is given up")

    engine = Served(tmp_path, never)
    publishing = asyncio.create_task(engine.publish(publication(1)))
    await asked.wait()
    engine.exited.set_result("its node is gone")
    with pytest.raises(EngineError, match="did not answer POST /lightning/weights: its node is gone"):
        await publishing
    with pytest.raises(EngineError, match="is not running"):
        _ = engine.base_url
    await engine.stop()


async def test_every_request_has_the_token(tmp_path, publication):
    seen = []

    async def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["authorization"])
        return httpx.Response(200, json={"version": 3})

    engine = Served(tmp_path, answer)
    assert await engine.version() == 3
    assert seen == ["Bearer a token of this life"]
    await engine.stop()


async def test_a_request_right_after_the_end_says_that_the_engine_has_ended(tmp_path, publication):
    async def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"version": 3})

    engine = Served(tmp_path, answer)
    engine.exited.set_result("a segmentation fault")
    await engine.stop()
    for asked in (engine.version(), engine.wake(), engine.publish(publication(1))):
        with pytest.raises(EngineError, match="a segmentation fault"):
            await asked

"""``POLICY@vN`` of a version that is not served any more is answered by an engine of its own, which each call holds."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.errors import EngineError
from lightning_trainer.gateway.engine.upstream import Upstream


class OldVersions:
    """Keeps version 2; counts the calls that hold it."""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self.held = self.given = 0
        self.busy = False

    def versions(self) -> Sequence[int]:
        return [2]

    async def lease(self, version: int) -> "Lease | None":
        if version != 2:
            return None
        if self.busy:
            raise EngineError("version 1 is being evaluated")
        self.held += 1
        self.given += 1
        return Lease(self)


@dataclass
class Lease:
    owner: OldVersions

    @property
    def upstream(self) -> Upstream:
        return self.owner.upstream

    def release(self) -> None:
        self.owner.held -= 1


async def let_go(kept: OldVersions) -> None:
    """A stream's end is read before its slot is given back."""
    async with asyncio.timeout(10):
        while kept.held:
            await asyncio.sleep(0.01)


@pytest.fixture
async def gateways(open_gateway) -> AsyncIterator[tuple]:
    """A gateway whose engine serves version 3, and the old version's engine behind it."""
    async with open_gateway() as old:
        old.engine.version = 2
        upstream = Upstream(old.endpoint, queue_timeout_s=5, silence_timeout_s=5, connections=4)
        kept = OldVersions(upstream)
        async with open_gateway(of_policy={"old_versions": kept}) as gateway:
            yield gateway, old, kept
        await upstream.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_the_old_engine_answers_and_is_let_go_at_the_end_of_the_answer(gateways, stream) -> None:
    gateway, old, kept = gateways
    answer = await gateway.post(model="sql@v2", stream=stream)
    assert answer.status_code == 200
    assert (len(gateway.engine.requests), len(old.engine.requests)) == (0, 1)
    assert kept.given == 1
    await let_go(kept)
    assert (await gateway.record()).attributes[semconv.POLICY_VERSION] == 2


async def test_the_newest_is_served_by_its_own_engine_whatever_it_is_called(gateways) -> None:
    gateway, old, kept = gateways
    for model in ("sql", "sql@v3"):
        assert (await gateway.post(model=model)).status_code == 200
    assert (len(gateway.engine.requests), len(old.engine.requests), kept.given) == (2, 0, 0)


@pytest.mark.long
async def test_while_the_live_engine_restarts_a_kept_version_is_not_said_to_be_unknown(gateways) -> None:
    gateway, old, kept = gateways
    gateway.endpoint.up.clear()
    asyncio.get_running_loop().call_later(2.5, gateway.endpoint.up.set)
    answer = await gateway.post(model="sql@v2")
    assert answer.status_code == 200, answer.text
    assert (len(gateway.engine.requests), len(old.engine.requests), kept.given) == (0, 1, 1)


@pytest.mark.parametrize("stream", [False, True])
async def test_one_that_was_replaced_while_the_call_waited_is_kept_and_may_be_called_again(gateways, stream) -> None:
    gateway, _, kept = gateways
    gateway.engine.reported_version = 2  # it answers as version 3
    answer = await gateway.post(model="sql@v2", stream=stream)
    assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
    assert answer.json()["error"]["message"] == "sql@v2 was replaced by sql@v3 while this call waited; call it again"
    gateway.engine.reported_version = None
    assert (await gateway.post(model="sql@v2", stream=stream)).status_code == 200
    assert kept.given == 1


async def test_a_caller_who_hangs_up_lets_the_old_engine_go(gateways) -> None:
    gateway, old, kept = gateways
    begun = asyncio.Event()

    async def pace(position: int) -> None:
        begun.set()
        await asyncio.sleep(30 if position else 0)

    old.engine.pace = pace
    async with gateway.http.stream("POST", "/v1/chat/completions", json=gateway.body(model="sql@v2", stream=True)):
        await begun.wait()
        assert kept.held == 1
    await let_go(kept)


async def test_while_it_is_busy_with_another_version_the_call_may_come_again(gateways) -> None:
    gateway, _, kept = gateways
    kept.busy = True
    answer = await gateway.post(model="sql@v2")
    assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
    assert "version 1 is being evaluated" in answer.json()["error"]["message"]
    assert kept.held == 0


async def test_what_is_not_kept_is_refused_with_what_is(gateways) -> None:
    gateway, _, _ = gateways
    answer = await gateway.post(model="sql@v1")
    assert answer.status_code == 404
    assert "known models: sql, sql@v3, sql@v2" in answer.json()["error"]["message"]
    listed = (await gateway.http.get("/v1/models")).json()["data"]
    assert [model["id"] for model in listed] == ["sql", "sql@v3", "sql@v2"]

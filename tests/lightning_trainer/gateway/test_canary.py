"""A candidate answers its share of live rollouts, each of them from its first call to its last."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.errors import EngineError
from lightning_trainer.gateway.canary import CanaryRoute
from lightning_trainer.gateway.engine.upstream import Upstream


def of(name: str, **more: str) -> dict[str, str]:
    return {semconv.ROLLOUT_ID: name, **more}


def test_a_share_of_rollouts_is_chosen_and_each_stays_where_it_is():
    route = CanaryRoute("p", share=0.2, by="rollout")
    route.begin(7)
    chosen = {f"r{number}" for number in range(2000) if route.version_for(of(f"r{number}")) == 7}
    assert 0.15 < len(chosen) / 2000 < 0.25
    assert {f"r{number}" for number in range(2000) if route.version_for(of(f"r{number}")) == 7} == chosen
    route.begin(8)
    others = {f"r{number}" for number in range(2000, 4000) if route.version_for(of(f"r{number}")) == 8}
    assert 0.15 < len(others) / 2000 < 0.25
    route.end()
    assert not any(route.version_for(of(name)) for name in chosen)


def test_a_rollout_that_has_begun_with_the_live_version_ends_with_it():
    route = CanaryRoute("p", share=0.5, by="rollout")
    before = [f"r{number}" for number in range(200)]
    assert not any(route.version_for(of(name)) for name in before)
    route.begin(7)
    assert not any(route.version_for(of(name)) for name in before)
    assert any(route.version_for(of(f"new-{number}")) for number in range(200))


def test_evaluations_and_calls_of_no_rollout_are_the_live_versions():
    route = CanaryRoute("p", share=0.5, by="rollout")
    route.begin(7)
    for number in range(100):
        assert route.version_for(of(f"r{number}", **{semconv.ROLLOUT_MODE: "evaluate"})) is None
        assert route.version_for({semconv.AGENT_NAME: "a"}) is None


def test_a_session_stays_together_where_it_is_the_task():
    route = CanaryRoute("p", share=0.5, by="task")
    route.begin(7)
    for session in range(50):
        answers = {
            route.version_for(of(f"r{number}", **{semconv.TASK_ID: f"session-{session}"})) for number in range(5)
        }
        assert len(answers) == 1


@dataclass
class Candidate:
    """Serves version 4 beside the live one."""

    upstream: Upstream
    held: int = 0
    error: str | None = None

    def versions(self) -> Sequence[int]:
        return [4]

    async def lease(self, version: int):
        if self.error is not None:
            raise EngineError(self.error)
        assert version == 4
        self.held += 1
        return self

    def release(self) -> None:
        self.held -= 1


@pytest.fixture
async def gateways(open_gateway) -> AsyncIterator[tuple]:
    async with open_gateway() as beside:
        beside.engine.version = 4
        upstream = Upstream(beside.endpoint, queue_timeout_s=5, silence_timeout_s=5, connections=4)
        candidate, route = Candidate(upstream), CanaryRoute("sql", share=0.5, by="rollout")
        async with open_gateway(of_policy={"old_versions": candidate, "canary": route}) as gateway:
            yield gateway, beside, candidate, route
        await upstream.close()


async def ask(gateway, rollout: str):
    baggage = {"baggage": f"{semconv.ROLLOUT_ID}={rollout},{semconv.ATTEMPT_ID}={rollout}"}
    return await gateway.post(headers=baggage, model="sql")


async def test_the_gateway_asks_the_candidate_and_records_its_version(gateways) -> None:
    gateway, beside, candidate, route = gateways
    assert (await ask(gateway, "early")).status_code == 200
    route.begin(4)
    for number in range(20):
        assert (await ask(gateway, f"r{number}")).status_code == 200
    assert len(gateway.engine.requests) + len(beside.engine.requests) == 21
    assert 3 <= len(beside.engine.requests) <= 17
    assert candidate.held == 0
    versions = {
        span.attributes[semconv.ROLLOUT_ID]: span.attributes[semconv.POLICY_VERSION] for span in gateway.sink.spans
    }
    assert versions["early"] == 3
    assert sum(version == 4 for version in versions.values()) == len(beside.engine.requests)


async def test_a_candidate_that_is_gone_costs_no_answer(gateways) -> None:
    gateway, beside, candidate, route = gateways
    route.begin(4)
    candidate.error = "its engine has died"
    for number in range(10):
        assert (await ask(gateway, f"r{number}")).status_code == 200
    assert (len(gateway.engine.requests), len(beside.engine.requests)) == (10, 0)

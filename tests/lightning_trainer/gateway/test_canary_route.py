"""A candidate answers its share of live rollouts, each of them from its first call to its last."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.errors import EngineError
from lightning_trainer.gateway import asking
from lightning_trainer.gateway.canary_route import CanaryRoute
from lightning_trainer.gateway.engine.upstream import Upstream
from lightning_trainer.gateway.shadow import Shadow


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
    assert route.version_for({semconv.TASK_ID: "session-1"}) is None, "of no rollout"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(("by", "key"), [("task", semconv.TASK_ID), ("group", semconv.GROUP_ID)])
def test_tasks_that_come_again_and_again_reach_the_candidate(by, key):
    """A session that was going on when it came stays with the live version; a task of yesterday is no session."""
    clock = Clock()
    route = CanaryRoute("p", share=0.5, by=by, clock=clock)

    def answered(day: int, number: int) -> int | None:
        return route.version_for(of(f"day-{day}-{number}", **{key: f"task-{number}"}))

    assert not any(answered(0, number) for number in range(200))
    route.begin(7)
    assert not any(answered(1, number) for number in range(200)), "they go on"
    clock.now += 301
    assert 70 < sum(answered(2, number) == 7 for number in range(200)) < 130
    assert not any(answered(1, number) for number in range(200)), "a rollout ends with the version it began with"
    route.begin(8)
    for _ in range(20):
        assert not any(answered(1, number) for number in range(200))
        clock.now += 100
    chosen = {number for number in range(200) if answered(3, number) == 8}
    assert 70 < len(chosen) < 130, "those that are never idle for 5 minutes, after half an hour"
    assert {number for number in range(200) if answered(4, number) == 8} == chosen


def test_a_session_of_which_the_candidate_did_not_answer_a_call_stays_with_the_live_version():
    route = CanaryRoute("p", share=0.5, by="task")
    route.begin(7)
    told = next(
        told
        for number in range(100)
        if route.version_for(told := of(f"r{number}", **{semconv.TASK_ID: f"session-{number}"})) == 7
    )
    route.stay(told)
    assert route.version_for(told) is None
    assert route.version_for({**told, semconv.ROLLOUT_ID: "another"}) is None


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


async def ask(gateway, rollout: str, **fields):
    baggage = {"baggage": f"{semconv.ROLLOUT_ID}={rollout},{semconv.ATTEMPT_ID}={rollout}"}
    return await gateway.post(headers=baggage, model="sql", **fields)


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


@pytest.mark.parametrize("stream", [False, True])
async def test_a_candidate_whose_engine_stops_answering_costs_no_answer_and_is_counted(
    gateways, stream, monkeypatch
) -> None:
    monkeypatch.setattr(asking, "_CANDIDATE_WAIT_S", 0.05)
    gateway, beside, candidate, route = gateways
    route.begin(4)
    beside.endpoint.up.clear()
    names = [f"r{number}" for number in range(20)]
    assert [(await ask(gateway, name, stream=stream)).status_code for name in names] == [200] * 20
    assert (len(gateway.engine.requests), len(beside.engine.requests)) == (20, 0)
    assert 3 <= route.failed == route.asked <= 17
    beside.endpoint.up.set()
    for name in names:
        assert (await ask(gateway, name, stream=stream)).headers["x-lightning-policy-version"] == "3", "it changed over"
    assert candidate.held == 0


async def test_what_the_live_version_cannot_answer_either_says_nothing_of_the_candidate(gateways) -> None:
    gateway, beside, _, route = gateways
    route.begin(4)
    beside.engine.error = (500, {"error": "broken"})
    for number in range(20):
        assert (await ask(gateway, f"r{number}")).status_code == 200
    assert 3 <= (failed := route.failed) <= 17
    gateway.engine.error = (500, {"error": "broken too"})
    for number in range(20, 40):
        assert (await ask(gateway, f"r{number}")).status_code == 500
    assert route.failed == failed
    beside.engine.error = (400, {"error": "a mistake of the caller's"})
    answers = {(await ask(gateway, f"r{number}")).status_code for number in range(40, 60)}
    assert (answers, route.failed) == ({400, 500}, failed)


async def test_while_the_live_versions_engine_is_away_too_nothing_is_said_of_the_candidate(
    gateways, monkeypatch
) -> None:
    """An adapter's engine is the live version's: it restarts, or sleeps while another policy is trained."""
    monkeypatch.setattr(asking, "_CANDIDATE_WAIT_S", 0.05)
    gateway, beside, _, route = gateways
    route.begin(4)
    for engine in (gateway, beside):
        engine.endpoint.up.clear()
    asked = asyncio.gather(*(ask(gateway, f"r{number}") for number in range(20)))
    await until(lambda: gateway.endpoint.waiting == 20)
    gateway.endpoint.up.set()
    answers = await asked
    assert {answer.headers["x-lightning-policy-version"] for answer in answers} == {"3"}
    assert (route.asked > 2, route.failed) == (True, 0)


@pytest.fixture
async def shadows(open_gateway) -> AsyncIterator[tuple]:
    """A gateway before the live engine, with a candidate that answers beside it, one call at a time."""
    async with open_gateway() as beside:
        beside.engine.version = 4
        upstream = Upstream(beside.endpoint, queue_timeout_s=5, silence_timeout_s=5, connections=4)
        candidate, route = Candidate(upstream), CanaryRoute("sql", share=1.0, by="rollout", shadow=True)
        sink = type(beside.sink)()
        shadow = Shadow(route, candidate, sink, at_once=1)
        told = {"old_versions": candidate, "canary": route, "shadow": shadow}
        async with open_gateway(of_policy=told, sink=sink) as gateway:
            yield gateway, beside, candidate, route
        await upstream.close()


async def until(holds) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("stream", [False, True])
async def test_beside_the_live_version_the_candidate_is_asked_the_same_and_nobody_sees_its_answer(
    shadows, stream
) -> None:
    gateway, beside, candidate, route = shadows
    route.begin(4)
    answer = await gateway.post(
        headers={"baggage": f"{semconv.ROLLOUT_ID}=r,{semconv.ATTEMPT_ID}=a,{semconv.GROUP_ID}=g"},
        stream=stream,
        temperature=0.5,
    )
    assert answer.headers["x-lightning-policy-version"] == "3"
    await until(lambda: len(gateway.sink.spans) == 2)
    (live,), (asked,) = gateway.engine.requests, beside.engine.requests
    same = ("messages", "temperature", "model")
    assert [asked[name] for name in same] == [live[name] for name in same]
    assert "stream" not in asked
    mine, theirs = sorted(gateway.sink.spans, key=lambda span: span.attributes[semconv.POLICY_VERSION])
    assert mine.attributes[semconv.ATTEMPT_ID] == "a"
    told = {
        semconv.ROLLOUT_ID: "r.shadow-v4",
        semconv.ATTEMPT_ID: "a.shadow-v4",
        semconv.GROUP_ID: "a.shadow-v4",
        semconv.ROLLOUT_MODE: "shadow",
        semconv.POLICY_VERSION: 4,
    }
    assert {name: theirs.attributes[name] for name in told} == told
    assert theirs.attributes[semconv.response_token_ids(0)] == mine.attributes[semconv.response_token_ids(0)]
    assert theirs.trace_id != mine.trace_id
    await until(lambda: candidate.held == 0)
    assert (route.dropped, route.failed) == (0, 0)


async def test_what_the_candidate_is_asked_and_answers_is_no_more_recorded_than_the_callers_own(shadows) -> None:
    gateway, _, _, route = shadows
    route.begin(4)
    baggage = f"{semconv.ROLLOUT_ID}=r,{semconv.ATTEMPT_ID}=a"
    await gateway.post(headers={"baggage": baggage, "x-lightning-capture-content": "0"})
    await until(lambda: len(gateway.sink.spans) == 2)
    assert not any(semconv.CONTENT_KEYS & set(span.attributes) for span in gateway.sink.spans)


async def test_a_call_beside_a_busy_candidate_is_dropped_and_counted_and_the_live_answer_waits_for_nothing(
    shadows,
) -> None:
    gateway, beside, _, route = shadows
    go_on = asyncio.Event()

    async def pace(position: int) -> None:
        await go_on.wait()

    beside.engine.pace = pace
    route.begin(4)
    for number in range(3):
        assert (await ask(gateway, f"r{number}")).status_code == 200
    await until(lambda: len(beside.engine.requests) == 1)
    assert route.dropped == 2
    go_on.set()
    await until(lambda: len(gateway.sink.spans) == 4)


async def test_a_candidate_that_breaks_beside_the_live_version_is_counted_and_costs_no_answer(shadows) -> None:
    gateway, beside, candidate, route = shadows
    route.begin(4)
    beside.engine.error = (500, {"error": "broken"})
    assert (await ask(gateway, "r1")).status_code == 200
    await until(lambda: route.failed == 1)
    candidate.error = "its engine has died"
    assert (await ask(gateway, "r2")).status_code == 200
    await until(lambda: route.failed == 2)
    assert len(gateway.sink.spans) == 2
    assert candidate.held == 0


async def test_evaluations_have_no_shadow(shadows) -> None:
    gateway, beside, _, route = shadows
    route.begin(4)
    named = f"{semconv.ROLLOUT_ID}=r,{semconv.ATTEMPT_ID}=a"
    await gateway.post(headers={"baggage": f"{named},{semconv.ROLLOUT_MODE}=evaluate"})
    await gateway.post(headers={})
    assert beside.engine.requests == []

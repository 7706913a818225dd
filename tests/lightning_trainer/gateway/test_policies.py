"""Several policies behind one gateway: the model's name decides who answers, else whose agent is calling."""

import asyncio
from collections.abc import AsyncIterator
from fnmatch import fnmatchcase

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.errors import EngineError
from lightning_trainer.gateway.engine.upstream import Upstream
from lightning_trainer.gateway.errors import RefusalError
from lightning_trainer.gateway.policies import ServedPolicies, ServedPolicy


@pytest.fixture
async def gateways(open_gateway) -> AsyncIterator[tuple]:
    """A gateway of the policies "sql" (agents ``sql*``) and "prose" (any agent), and the engine of the second."""
    async with open_gateway() as other:
        other.engine.policy = "prose"
        upstream = Upstream(other.endpoint, queue_timeout_s=5)
        prose = ServedPolicy("prose", upstream, claims=lambda agent: agent is not None)
        of_sql = {"claims": lambda agent: agent is not None and fnmatchcase(agent, "sql*")}
        async with open_gateway(more=[prose], of_policy=of_sql) as gateway:
            yield gateway, gateway.engine, other.engine


def by(agent: str) -> dict[str, str]:
    return {"baggage": f"{semconv.AGENT_NAME}={agent}"}


@pytest.mark.parametrize(
    ("model", "agent", "policy"),
    [
        ("sql", None, "sql"),
        ("prose", None, "prose"),
        ("prose", "sql_writer", "prose"),  # a policy's name is an explicit word
        ("prose@v3", None, "prose"),
        ("gpt-4o", "sql_writer", "sql"),
        ("gpt-4o", "poet", "prose"),
    ],
)
async def test_the_name_decides_else_the_agent(gateways, model, agent, policy) -> None:
    gateway, sql, prose = gateways
    answer = await gateway.post(by(agent) if agent else None, model=model)
    assert answer.status_code == 200
    assert answer.json()["model"] == model
    assert (len(sql.requests), len(prose.requests)) == ((1, 0) if policy == "sql" else (0, 1))
    assert (sql.requests + prose.requests)[0]["model"] == policy
    record = await gateway.record()
    assert record.attributes[semconv.POLICY] == policy
    assert record.attributes.get(semconv.AGENT_NAME) == agent


@pytest.mark.parametrize("model", ["gpt-4o", "sql@v", "sql@12", "prose@v1x", "", "prose@v2"])
async def test_what_is_no_policy_is_refused_with_the_names_of_those_there_are(gateways, model) -> None:
    gateway, sql, prose = gateways
    headers = by("sql_writer") if model.startswith(("sql", "prose")) else None
    answer = await gateway.post(headers, model=model)
    assert answer.status_code == 404
    known = "prose, prose@v3" if model == "prose@v2" else "sql, prose"
    said = f"there is no model {model!r} here; known models: {known}"
    if headers is None:
        said += "; the call names no agent, so no policy claims it: name one of these models, or the agent"
    assert answer.json()["error"]["message"] == said
    assert not sql.requests + prose.requests


def test_where_there_is_no_policy_it_is_said_whose_calls_are_recorded() -> None:
    # Before: "recorded all the same", whoever asked
    with pytest.raises(RefusalError) as raised:
        ServedPolicies([]).choose("gpt-4o", "writer")
    said = raised.value.body["error"]["message"]
    assert (
        "(a Python program with our client is recorded all the same; another one sends OpenTelemetry spans to " in said
    )


async def test_a_call_of_an_agent_that_no_policy_claims_is_told_which_one(open_gateway) -> None:
    async with open_gateway(of_policy={"claims": lambda agent: agent == "sql_writer"}) as gateway:
        answer = await gateway.post(by("planner"), model="gpt-4o")
    assert answer.json()["error"]["message"] == (
        "there is no model 'gpt-4o' here; known models: sql; no policy claims the agent 'planner': name one of these "
        "models, or add it to a policy's `agents`"
    )


async def test_all_are_listed(gateways) -> None:
    gateway, *_ = gateways
    listed = (await gateway.http.get("/v1/models")).json()["data"]
    assert [entry["id"] for entry in listed] == ["sql", "sql@v3", "prose", "prose@v3"]
    assert (await gateway.http.get("/v1/models/prose@v3")).status_code == 200
    assert (await gateway.http.get("/v1/models/huge")).status_code == 404


async def test_a_rollouts_base_url_names_the_agent(gateways) -> None:
    gateway, sql, prose = gateways
    for agent in ("sql_writer", "poet"):
        url = f"/rollouts/r/agents/{agent}/v1/chat/completions"
        assert (await gateway.http.post(url, json=gateway.body(model="anything"))).status_code == 200
    assert (len(sql.requests), len(prose.requests)) == (1, 1)


async def test_engines_that_are_away_are_asked_for_their_versions_at_once(open_gateway) -> None:
    asked = asyncio.Barrier(3)

    class Away:
        base_url, headers = "http://127.0.0.1:9", {}

        async def ready(self, timeout_s: float) -> None:
            async with asyncio.timeout(timeout_s):
                await asked.wait()
            raise EngineError("it is starting")

    more = [ServedPolicy(name, Upstream(Away())) for name in ("a", "b", "c")]
    async with open_gateway(more=more) as gateway:
        listed = (await gateway.http.get("/v1/models")).json()["data"]
    assert [model["id"] for model in listed] == ["sql", "sql@v3", "a", "b", "c"]
    assert not asked.broken, "one was asked after another"

"""What the daemon says about its policies is what a client reads and matches."""

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI
from lightning_instrumentation.routing.selection import Selection, read_selection

from lightning_trainer.config import PolicyConfig
from lightning_trainer.daemon.api.runs import selection_router
from lightning_trainer.gateway.auth import require_token

TOKEN = "0123456789abcdef"


def policy(name: str, *agents: str) -> PolicyConfig:
    return PolicyConfig.model_validate({"name": name, "agents": agents, "model": "random:tiny"})


async def ask(policies, headers=None) -> httpx.Response:
    app, gateway = FastAPI(), APIRouter()
    gateway.add_api_route("/v1/chat/completions", lambda: None, methods=["POST"])
    gateway.add_api_route("/v1/models", lambda: None, methods=["GET"])
    gateway.add_api_route("/rollouts/{rollout}/v1/chat/completions", lambda: None, methods=["POST"])
    app.include_router(selection_router(policies, gateway), dependencies=[Depends(require_token(TOKEN))])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://daemon") as client:
        return await client.get("/lightning/selection", headers=headers or {"Authorization": f"Bearer {TOKEN}"})


async def test_the_client_reads_what_the_daemon_says():
    answer = await ask([policy("sql", "sql_writer", "fixer*"), policy("prose", "*")])
    assert answer.json()["policies"] == [
        {"name": "sql", "agents": ["sql_writer", "fixer*"]},
        {"name": "prose", "agents": ["*"]},
    ]
    assert answer.json()["paths"] == ["/chat/completions"]
    assert read_selection(answer.json()) == Selection((("sql", ("sql_writer", "fixer*")), ("prose", ("*",))))


async def test_it_is_behind_the_token():
    assert (await ask([policy("sql", "*")], {"Authorization": "Bearer wrong"})).status_code == 401


@pytest.mark.parametrize("agent", ["fixer", "fixer_2", "Fixer", "a.b", "a[1]", "q?", "", "x\ny", "writer"])
@pytest.mark.parametrize("pattern", ["fixer*", "fixer", "*", "a[[]1]", "q[?]", "[!f]*", "?ixer", "a[1]", "q?"])
def test_client_and_daemon_claim_the_same_agents(pattern, agent):
    claims = policy("p", pattern).claims(agent)
    assert (Selection((("p", (pattern,)),)).policy_of(agent) == "p") is claims

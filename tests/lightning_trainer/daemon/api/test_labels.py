"""What a person says of a rollout is given under the name of the reward that is trained, unless another is named."""

import httpx
import pytest
from fastapi import FastAPI

from lightning_trainer.config import Config
from lightning_trainer.daemon.api.labels import labels_router
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.store import SqliteStore


def config(*rewards):
    policies = [
        {"name": f"p{number}", "agents": [f"a{number}"], "model": "random:tiny", "reward": reward}
        for number, reward in enumerate(rewards)
    ]
    return Config.model_validate({"policy": policies})


@pytest.fixture
async def post(tmp_path, attempt_spans):
    """``post(config, body)``: the status, what was said, and the names and numbers that the attempt then has."""
    async with SqliteStore(tmp_path / "store.sqlite") as store:
        await store.append(attempt_spans("a", [1], 1))

        async def ask(config, body):
            app = FastAPI()
            app.include_router(labels_router(store, store, config))
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
                answer = await client.post("/lightning/rollouts/r-a/labels", json=body)
            evaluations = read_spans(await store.spans_of_attempts(["a"])).evaluations
            return answer.status_code, answer.text, {one.name: one.value for one in evaluations}

        yield ask


@pytest.mark.parametrize(
    ("rewards", "given", "name"),
    [
        ((), {}, "reward"),
        (("helpful",), {}, "helpful"),
        (("helpful", {"helpful": 0.5}), {}, "helpful"),
        (("helpful",), {"name": "reward"}, "reward"),
        (({"helpful": 1.0, "short": 0.2},), {"name": "short"}, "short"),
    ],
)
async def test_a_label_is_of_the_only_reward_unless_it_names_another(post, rewards, given, name):
    status, _, evaluations = await post(config(*rewards), {"reward": 0.75, **given})
    assert (status, evaluations) == (200, {name: 0.75})


@pytest.mark.parametrize("rewards", [("helpful", "short"), ({"helpful": 1.0, "short": 0.2},)])
async def test_of_several_rewards_a_label_has_to_name_one(post, rewards):
    status, said, evaluations = await post(config(*rewards), {"reward": 0.75})
    assert (status, evaluations) == (422, {})
    assert "the label names no reward, and the policies have several: name one of helpful, short" in said
    status, _, _ = await post(config(*rewards), {"note": "right order, wrong tone"})
    assert status == 200

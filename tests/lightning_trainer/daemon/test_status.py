"""``GET /lightning/agents``: what the command line shows, from the store that the daemon is writing."""

from typing import Any, cast

import httpx
from fastapi import FastAPI

from lightning_trainer.daemon.progress import Progress
from lightning_trainer.daemon.status import status_router
from lightning_trainer.store import SqliteStore


async def test_agents_are_counted_again_when_something_was_stored(tmp_path, make_policy, recorded):
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        app = FastAPI()
        unused = cast(Any, None)
        app.include_router(
            status_router(
                make_policy(),
                store=store,
                progress=Progress(),
                engine=unused,
                trainer=unused,
                metrics=unused,
                old_versions=unused,
            )
        )
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://daemon") as client:
            assert (await client.get("/lightning/agents")).json() == {
                "policies": ["math"],
                "agents": [],
                "programs": [],
            }
            await store.append(recorded("genai"))
            report = (await client.get("/lightning/agents")).json()
            assert (await client.get("/lightning/agents")).json() == report
    solver = report["agents"][0]
    assert (solver["agent"], solver["policy"], solver["calls"], solver["tools"]) == (
        "solver",
        "math",
        2,
        ["calculator"],
    )
    assert solver["recognised_by"] == ["genai"]

"""``GET /lightning/agents``: what the command line shows, from the store that the daemon is writing."""

from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from lightning_instrumentation import semconv

from lightning_trainer.daemon.api.status import status_router
from lightning_trainer.daemon.watching.progress import Progress
from lightning_trainer.store import SqliteStore
from lightning_trainer.store.tables import steps
from lightning_trainer.types import LedgerRow, Outcome, PolicyVersion, Span, StepReport, VersionState


def _watched(policy) -> Any:
    return SimpleNamespace(policy=policy, progress=Progress(), metrics=SimpleNamespace(warnings={}, rows=[]))


async def test_a_runner_asks_what_a_group_needs_and_has_by_mode(tmp_path, make_policy):
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        app = FastAPI()
        app.include_router(status_router([_watched(make_policy(algorithm={"advantage": "remax"}))], store=store))
        await store.append([_root("a", "train"), _root("b", "train"), _root("c", "baseline"), _root("d", "evaluate")])
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://daemon") as client:
            asked = "/lightning/policies/math"
            assert (await client.get(asked)).json()["needs_baseline"] is True
            assert (await client.get(f"{asked}/groups?prefix=g")).json() == {"g": 2}
            assert (await client.get(f"{asked}/groups?prefix=g&mode=baseline")).json() == {"g": 1}
            assert (await client.get(f"{asked}/groups?mode=greedy")).status_code == 422
            await store.enroll("math")
            assert (await client.get(f"{asked}/lost_groups?prefix=g")).json() == {}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, False),
        ({"algorithm": {"dynamic_sampling": True}}, True),
        ({"stage": [{"algorithm": "dapo"}]}, True),
        ({"stage": [{"algorithm": "grpo", "steps": 3}, {"algorithm": "dapo"}]}, True),
    ],
)
async def test_a_runner_hears_of_dynamic_sampling_in_any_stage(tmp_path, make_policy, changes, expected):
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        app = FastAPI()
        app.include_router(status_router([_watched(make_policy(**changes))], store=store))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://daemon") as client:
            assert (await client.get("/lightning/policies/math")).json()["dynamic_sampling"] is expected


@pytest.mark.parametrize(
    "question",
    ["?before=", "/versions?before=", "/metrics?after=", "/groups?taken_until=", "/groups?taken_until=1&taken_after="],
)
async def test_a_number_that_is_too_large_for_the_store_is_refused(tmp_path, make_policy, question):
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        app = FastAPI()
        app.include_router(status_router([_watched(make_policy())], store=store))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://daemon") as client:
            for number in (2**62 + 1, 2**63):
                assert (await client.get(f"/lightning/policies/math{question}{number}")).status_code == 422
            assert (await client.get(f"/lightning/policies/math/metrics?after={2**62}")).json()["rows"] == []


def _root(attempt: str, mode: str) -> Span:
    attributes = {
        semconv.ATTEMPT_ID: attempt,
        semconv.ROLLOUT_ID: f"r-{attempt}",
        semconv.GROUP_ID: "g",
        semconv.ROLLOUT_MODE: mode,
        semconv.ROLLOUT_ROOT: True,
    }
    return Span(attempt * (32 // len(attempt)), attempt * (16 // len(attempt)), None, "rollout", 1, 2, attributes)


async def test_agents_are_counted_again_when_something_was_stored(tmp_path, make_policy, recorded):
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        app = FastAPI()
        app.include_router(status_router([_watched(make_policy())], store=store))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://daemon") as client:
            assert (await client.get("/lightning/agents")).json() == {
                "policies": ["math"],
                "agents": [],
                "programs": [],
                "unread": {},
                "spans_read": 0,
                "spans_held": 0,
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


async def test_each_policy_answers_for_itself_and_who_is_none_is_told_the_names(tmp_path, make_policy):
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        math, prose = _watched(make_policy()), _watched(make_policy(name="prose", agents=("poet",), group_size=3))
        prose.progress.say("nobody calls")
        app = FastAPI()
        app.include_router(status_router([math, prose], store=store))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://daemon") as client:
            asked = {name: (await client.get(f"/lightning/policies/{name}")).json() for name in ("math", "prose")}
            unknown = await client.get("/lightning/policies/sql")
            report = (await client.get("/lightning/agents")).json()
    assert (asked["math"]["problems"], asked["prose"]["problems"]) == ([], ["nobody calls"])
    assert asked["prose"]["group_size"] == 3
    assert (unknown.status_code, unknown.json()["detail"]) == (
        404,
        "there is no policy 'sql'; this daemon has 'math', 'prose'",
    )
    assert report["policies"] == ["math", "prose"]


async def test_what_grows_with_the_run_is_answered_in_pages(tmp_path, make_policy, monkeypatch):
    decoded: list[bool] = []
    decode = steps.decode_report

    def counted(body: bytes, *, advantages: bool = True) -> StepReport:
        decoded.append(advantages)
        return decode(body, advantages=advantages)

    monkeypatch.setattr(steps, "decode_report", counted)
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        await store.append([_root(f"{n:04}", "train") for n in range(1, 121)])
        for n in range(1, 121):
            row = LedgerRow("solver", "math", n - 1, Outcome.TRAINED, "sampled", 1, 1)
            await store.assign(None, policy="math", step=n, attempt_ids=[f"{n:04}"], ledger=[row], state="skipped")
            await store.finish_step("math", StepReport(n, {"x": n}, {"s": (0.5,) * 9}, 1, 1, 1, {}), "skipped")
            await store.put_version(PolicyVersion("math", n, n, VersionState.TRAINED, n))
        watched = _watched(make_policy())
        watched.old_versions = SimpleNamespace(versions=lambda: ())
        app = FastAPI()
        app.include_router(status_router([watched], store=store))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://daemon") as client:

            async def page(path: str = "") -> Any:
                return (await client.get(f"/lightning/policies/math{path}")).raise_for_status().json()

            newest, older = await page(), await page("?before=21&limit=3")
            assert decoded == [False] * 103
            assert newest["waiting_groups_total"] == 0
            assert [len(newest[name]) for name in ("steps", "versions", "ledger")] == [100] * 3
            assert newest["steps"][-1]["metrics"] == {"x": 120}
            assert [one["step"] for one in older["steps"]] == [18, 19, 20]
            assert [one["version"] for one in older["versions"]] == [18, 19, 20]
            assert [one["policy_version"] for one in older["ledger"]] == [17, 18, 19]
            assert [one["version"] for one in await page("/versions?limit=2")] == [119, 120]
            assert [one["step"] for one in (await page("/metrics?limit=2"))["rows"]] == [119, 120]
            assert [one["step"] for one in (await page("/metrics?after=5&limit=2"))["rows"]] == [6, 7]
            assert (await page("/metrics?after=5&limit=1"))["rows"][0]["ledger/trained"] == 1
            assert len(decoded) == 103 + 2 + 2 + 1
            assert len((await page("/metrics?after=0"))["rows"]) == 100
            assert (await client.get("/lightning/policies/math?limit=1001")).status_code == 422
            assert not any(decoded)

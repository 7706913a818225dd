"""``versions``, ``agents``, ``health`` and ``explain`` of a daemon elsewhere."""

import json

from lightning_trainer.cli import versions


async def test_what_a_daemon_elsewhere_has_is_shown(said, here, daemon_of, monkeypatch):
    async with daemon_of("math", "prose") as daemon:
        monkeypatch.setenv("LIGHTNING_ENDPOINT", daemon.url)
        monkeypatch.setattr(versions, "_PAGE", 3)
        shown = await said("versions", "--policy", "math")
        assert "v2 gone 0.900 1 1970" in shown
        assert [row["version"] for row in json.loads(await said("versions", "--policy", "math", "--json"))] == [
            0,
            1,
            2,
            3,
        ]
        page = await said("versions", "--policy", "math", "--limit", "1", "--before", "3")
        assert "v2 gone 0.900" in page
        assert "v1" not in page
        assert "the older ones: --before 2" in page
        assert "name one of the policies math, prose" in await said("versions", status=2)
        seen = json.loads(await said("agents", "--json"))
        assert (seen["policies"], seen["spans_read"]) == (["math", "prose"], seen["spans_held"])
        assert "solver" in await said("agents")
        assert "leave out --newest and --all" in await said("agents", "--all", status=2)
        assert "leave out --newest and --all" in await said("agents", "--newest", "5", status=2)
        assert json.loads(await said("health"))["status"] == "ok"
        assert "training is starting" in await said("health", "--ready", status=1)
        monkeypatch.setenv("LIGHTNING_TOKEN", "of-another-daemon-altogether")
        for command in ("versions", "agents"):
            told = await said(command, status=2)
            assert "set LIGHTNING_TOKEN to what `lightning-trainer token` prints where it runs" in told
        assert "set LIGHTNING_TOKEN" in await said("health", status=1)


async def test_a_daemon_elsewhere_explains_what_it_recorded(said, here, daemon_of, monkeypatch):
    async with daemon_of("math", "prose") as daemon:
        monkeypatch.setenv("LIGHTNING_ENDPOINT", daemon.url)
        listed = await said("explain")
        assert "r-a " in listed
        assert "explain one by its id" in listed
        whole = await said("explain", "r-a")
        assert whole.startswith("rollout r-a")
        assert "call after agent" in whole
        assert await said("explain", "r-a", columns=4000) == whole
        document = json.loads(await said("explain", "r-a", "--json"))
        assert document["rollouts"][0]["headline"] in whole
        assert document["rollouts"][0]["attempts"][0]["attempt_id"] == "a"
        several = json.loads(await said("explain", "r-e*", "--json"))["rollouts"]
        assert [one["rollout_id"] for one in several] == ["r-e0", "r-e1", "r-e2", "r-e3"]
        last = json.loads(await said("explain", "--last", "--json", "--endpoint", daemon.url))["rollouts"]
        assert [one["rollout_id"] for one in last] == ["r-a"]
        assert "no rollout, attempt or task 'nothing' in the daemon's store" in await said(
            "explain", "nothing", status=2
        )
        assert "'other' is not one of them" in await said("explain", "r-a", "--policy", "other", status=2)
        assert "a page of" in await said("explain", "r-a", "--html", "tree.html", status=2)
        assert "made no call in the newest" in await said("explain", "--agent", "nobody", "--last", status=2)
        # What is named to be read here is read here, whatever the environment says.
        assert "cannot read" in await said("explain", "--spans", "spans.jsonl", status=2)
        assert "nowhere" in await said("explain", "--state-dir", "nowhere", status=2)
    assert [path.name for path in here.iterdir()] == []

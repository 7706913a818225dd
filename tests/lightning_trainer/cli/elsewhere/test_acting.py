"""``drop``, ``pause``, ``resume``, ``rollback``, ``promote`` and ``status`` of a daemon elsewhere, which has the
policies, their versions and their scores.
"""

import json
import socket
import time

import pytest

from lightning_trainer.cli import versions
from lightning_trainer.store import SqliteStore
from lightning_trainer.types import PolicyVersion, TrainingBatch, VersionState

HERE = '[[policy]]\nname = "local"\nagents = ["solver"]\nmodel = "random:tiny"\n'


async def test_a_daemon_elsewhere_is_asked(said, here, daemon_of, monkeypatch):
    async with daemon_of("math") as daemon:
        at = ("--endpoint", daemon.url)
        requests = daemon.requests["math"]
        assert await said("drop", "a", "--reason", "leaked", *at) == "rollout a: 1 attempt will not be trained"
        assert "(1 of them were before)" in await said("drop", "a", *at)
        paused = await said("pause", "--reason", "for the night", *at)
        assert paused == "training of math is paused after the present step; serving and capture go on"
        assert requests.paused == "for the night"
        monkeypatch.setenv("LIGHTNING_ENDPOINT", daemon.url)
        assert await said("resume") == "training of math goes on"
        assert await said("resume", "--policy", "math") == "training of math was not paused"
        told = await said("rollback", "v1")
        assert told == (
            f"asking the daemon at {daemon.url}; it goes back between two steps "
            "math serves version 1 and trains on from it"
        )
        assert "it publishes between two steps" in await said("promote", "math@v3")
        monkeypatch.setattr(versions, "_PAGE", 2)
        assert "math serves version 2" in await said("rollback", "best")
        assert daemon.done == [("math", 1, False), ("math", 3, True), ("math", 2, False)]
        shown = await said("status")
        assert "math starting, 0 steps, serving math@v3" in shown
        assert "note: it wanders" in shown
        document = json.loads(await said("status", "--json"))
        assert [*document] == ["math"]
        assert document["math"]["store"].items() >= {"media": 0, "note": None, "write_failure": None}.items()
    assert not (here / ".lightning").exists()


async def test_a_mistake_is_one_sentence_of_the_daemon_that_was_asked(said, here, daemon_of, monkeypatch):
    (here / "lightning.toml").write_text(HERE)
    async with daemon_of("math", "prose") as daemon:
        monkeypatch.setenv("LIGHTNING_ENDPOINT", daemon.url)
        for command in (("pause",), ("resume",), ("rollback", "1"), ("promote", "best")):
            which = f"name one of the policies math, prose of the daemon at {daemon.url} with --policy"
            assert which in await said(*command, status=2)
        for command in (("pause",), ("resume",), ("rollback", "1"), ("promote", "best"), ("status",)):
            told = await said(*command, "--policy", "local", status=2)
            assert "there is no policy 'local'; this daemon has 'math', 'prose'" in told
        assert "the version is one of 'prose'" in await said("rollback", "prose@2", "--policy", "math", status=2)
        assert "no version of 'prose' has a held-out score" in await said("rollback", "prose@best", status=2)
        assert "there is no version 99 of math" in await said("rollback", "math@99", status=2)
        assert "'two' is not a version" in await said("promote", "math@two", status=2)
        assert "there is no rollout or group or step 'r-z'" in await said("drop", "r-z", status=2)
        assert [*json.loads(await said("status", "--json"))] == ["math", "prose"]
        assert daemon.done == []
        monkeypatch.setenv("LIGHTNING_TOKEN", "of-another-daemon-altogether")
        for command in (("drop", "a"), ("pause",), ("rollback", "1"), ("promote", "1"), ("status",)):
            told = await said(*command, status=2)
            assert "set LIGHTNING_TOKEN to what `lightning-trainer token` prints where it runs" in told


async def test_a_daemon_that_only_records_has_nothing_to_pause(said, here, daemon_of, monkeypatch):
    async with daemon_of() as daemon:
        at = ("--endpoint", daemon.url)
        assert f"the daemon at {daemon.url} has no policy: it only records" in await said("pause", *at, status=2)
        told = await said("status", *at)
        assert told.startswith(f"recording at {daemon.url}; spans: 2, rollouts: 1; there is no [[policy]]")
        assert "lightning-trainer agents" not in told, "it would show those of this machine's store"
        monkeypatch.setenv("LIGHTNING_TOKEN", "none")
        for command in ("status", "pause"):
            assert "the daemon refuses the token: set LIGHTNING_TOKEN" in await said(command, *at, status=2)


@pytest.fixture
def port() -> int:
    """Where nobody listens."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


async def test_a_shell_for_one_daemon_changes_no_store_that_is_not_named(said, here, port, monkeypatch, attempt_spans):
    (here / "lightning.toml").write_text(f'[daemon]\nport = {port}\nstate_dir = "state"\n{HERE}')
    async with SqliteStore(here / "state" / "lightning.sqlite") as store:
        await store.enroll("local")
        await store.append(attempt_spans("a", [1, 2], time.time_ns() - 10**9))
        for version in range(3):
            if version:
                batch = TrainingBatch("local", version, ())
                await store.assign(batch, policy="local", step=version, attempt_ids=[], ledger=[])
            await store.put_version(PolicyVersion("local", version, version, VersionState.LIVE, version))
    commands = {
        ("drop", "a"): "rollout a: 1 attempt will not be trained",
        ("pause",): "training of local is paused when the daemon starts next",
        ("resume",): "training of local goes on when the daemon starts next",
        ("rollback", "local@1"): "local is at version 1 when the daemon starts next",
        ("promote", "2"): "no daemon runs here",
        ("status",): "no daemon runs on",
    }
    monkeypatch.setenv("LIGHTNING_ENDPOINT", "http://127.0.0.1:9")
    for command in commands:
        assert "127.0.0.1:9 did not answer" in await said(*command, status=2)
    needs_daemon = ("promote", "status")
    for command, sentence in commands.items():
        told = await said(*command, "--config", "lightning.toml", status=2 * (command[0] in needs_daemon))
        assert sentence in told
    monkeypatch.setenv("LIGHTNING_ENDPOINT", f"http://localhost:{port}")
    del commands["rollback", "local@1"]  # where it is already
    commands["rollback", "0"] = "local is at version 0 when the daemon starts next"
    for command, sentence in commands.items():
        assert sentence in await said(*command, status=2 * (command[0] in needs_daemon))
        named = await said(*command, "--endpoint", f"http://127.0.0.1:{port}", status=2)
        assert f"127.0.0.1:{port} did not answer" in named

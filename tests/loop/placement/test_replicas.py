"""A daemon with two engines: what is trained is served by both, and one that is killed is missed by no call."""

import json
import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytestmark = [pytest.mark.loop, pytest.mark.engine, pytest.mark.verl, pytest.mark.slow]

AGENT = Path(__file__).parents[1] / "scripts" / "agent_script.py"
POLICY = """
[[policy]]
name = "tiny"
agents = ["tester"]
model = "random:tiny"
group_size = 2
groups_per_step = 2
max_sample_tokens = 256
optimizer.lr = 1e-2
lora = { rank = 4, alpha = 8 }
"""


@pytest.fixture(scope="module")
def daemon(make_daemon) -> Iterator:
    with make_daemon(POLICY, engine="replicas = 2").running("tiny") as daemon:
        yield daemon


def replicas(daemon) -> list[dict]:
    return daemon.get("/lightning/status")["policies"]["tiny"]["engine"]["replicas"]


def versions_of_calls(daemon, count: int = 8) -> set[str]:
    """Which versions answer so many calls at once."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "go on"}], "max_tokens": 40, "ignore_eos": True}
    url = f"{daemon.url}/v1/chat/completions"

    def call(_: int) -> str:
        request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.headers["x-lightning-policy-version"]

    with ThreadPoolExecutor(count) as pool:
        return set(pool.map(call, range(count)))


def test_each_step_is_served_by_both(daemon):
    assert [one["versions"] for one in replicas(daemon)] == [{"tiny": 0}] * 2
    daemon.script(AGENT, "--steps", "2")
    policy = daemon.policy("tiny")
    assert (policy["live_version"], policy["problems"]) == (2, [])
    assert [one["versions"] for one in replicas(daemon)] == [{"tiny": 2}] * 2
    assert versions_of_calls(daemon) == {"2"}


def test_one_that_is_killed_is_missed_by_no_call_and_comes_back(daemon):
    killed = replicas(daemon)[0]["pid"]
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(versions_of_calls, daemon)
        os.kill(killed, signal.SIGKILL)
        assert calling.result() == {"2"}
    deadline = time.monotonic() + 180
    while (first := replicas(daemon)[0])["restarts"] == 0 or first["state"] != "ready":
        assert time.monotonic() < deadline, daemon.tail()
        time.sleep(0.2)
    assert (first["versions"], first["pid"] != killed) == ({"tiny": 2}, True)
    assert [one["restarts"] for one in replicas(daemon)] == [1, 0]
    said = " ".join(daemon.command("status").split())
    assert "engine 1: ready" in said
    assert "restarts: 1, the last because the engine ended" in said
    daemon.script(AGENT, "--steps", "3")
    assert [one["versions"] for one in replicas(daemon)] == [{"tiny": 3}] * 2

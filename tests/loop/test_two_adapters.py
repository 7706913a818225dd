"""Two policies of one team, each an adapter of its own on a base that they share: one engine, two learners."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.loop, pytest.mark.engine, pytest.mark.verl, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("team_script.py")
STEPS = 10
POLICY = """
[[policy]]
name = "{name}"
agents = ["{agents}"]
model = "random:tiny"
group_size = 8
groups_per_step = 2
max_sample_tokens = 256
optimizer.lr = 2e-2
lora = {{ rank = 8, alpha = 16 }}
"""
SAME = 1e-4


@pytest.fixture(scope="module")
def team(make_daemon) -> Iterator:
    policies = POLICY.format(name="planner", agents="planner") + POLICY.format(name="worker", agents="worker_*")
    with make_daemon(policies).running("planner", "worker") as daemon:
        yield daemon


def test_both_learn_on_one_engine_and_neither_is_the_other(team, far_apart):
    base = team.logprobs("planner")
    assert far_apart(base, team.logprobs("worker")) < SAME, "an untrained adapter changes nothing"
    assert team.processes("planner")["engine"] == team.processes("worker")["engine"]
    before = json.loads(team.script(SCRIPT, "--steps", "0").splitlines()[-1])
    after = json.loads(team.script(SCRIPT, "--steps", str(STEPS)).splitlines()[-1])
    print(f"held-out before {before}, after {STEPS} steps {after}")
    assert after["team"] > before["team"]
    for name in ("planner", "worker"):
        policy = team.policy(name)
        assert (policy["steps_done"], policy["live_version"]) == (STEPS, STEPS)
        assert policy["problems"] == []
        assert all(version["probe_max_abs"] <= 1e-3 for version in policy["versions"])
        for step in policy["steps"]:
            assert abs(step["metrics"]["actor/ppo_kl"]) < 1e-4, "the trainer scores what this adapter sampled"
    served = [team.logprobs(name) for name in ("planner", "worker")]
    assert min(far_apart(base, served[0]), far_apart(base, served[1]), far_apart(*served)) > 1e-2


def test_one_is_rolled_back_and_the_other_stays(team, far_apart):
    planner, worker = (team.logprobs(name) for name in ("planner", "worker"))
    assert "worker serves version" in team.command("rollback", f"worker@v{STEPS - 1}")
    assert far_apart(team.logprobs("worker"), worker) > SAME
    assert far_apart(team.logprobs("planner"), planner) < SAME


def test_the_engine_comes_back_with_both(team, far_apart):
    served = {name: team.logprobs(name) for name in ("planner", "worker")}
    os.kill(team.processes("planner")["engine"], signal.SIGKILL)
    for name, before in served.items():
        assert far_apart(team.logprobs(name), before) < SAME

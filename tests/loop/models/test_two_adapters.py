"""Two policies of one team, each an adapter of its own on a base that they share: one engine, one trainer.

They differ in algorithm and learning rate, and each goes on from a checkpoint of its own when the trainer is killed.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.loop, pytest.mark.engine, pytest.mark.verl, pytest.mark.slow]

SCRIPT = Path(__file__).parents[1] / "scripts" / "team_script.py"
STEPS = 10
POLICY = """
[[policy]]
name = "{name}"
agents = ["{agents}"]
model = "random:tiny"
group_size = 8
groups_per_step = 2
max_sample_tokens = 256
checkpoint_every = {checkpoint_every}
algorithm = "{algorithm}"
optimizer.lr = {lr}
lora = {{ rank = 8, alpha = 16 }}
"""
SAME = 1e-4
NAMES = ("planner", "worker")


def _trainers_of(team) -> list[psutil.Process]:
    """The processes below the daemon that train, whatever it says of them."""
    found = []
    for process in psutil.Process(team.get("/lightning/status")["pid"]).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # one that has just ended
            if any("TrainerActor" in part for part in process.cmdline()):
                found.append(process)
    return found


def _checksums(team, name: str) -> dict[int, str]:
    return {version["version"]: version["checksum"] for version in team.policy(name)["versions"]}


@pytest.fixture(scope="module")
def team(make_daemon) -> Iterator:
    own = {
        "planner": {"agents": "planner", "algorithm": "grpo", "lr": 2e-2, "checkpoint_every": 3},
        "worker": {"agents": "worker_*", "algorithm": "dr_grpo", "lr": 1e-2, "checkpoint_every": 4},
    }
    policies = "".join(POLICY.format(name=name, **settings) for name, settings in own.items())
    with make_daemon(policies).running("planner", "worker") as daemon:
        yield daemon


def test_both_are_trained_on_one_engine_and_neither_is_the_other(team, far_apart):
    """The team's score is not looked at: over embeddings that stay random, an adapter can put no more than 0.54 of the
    probability into half of the vocabulary. That an adapter learns is shown in ``training/test_lora.py``."""
    base = team.logprobs("planner")
    assert far_apart(base, team.logprobs("worker")) < SAME, "an untrained adapter changes nothing"
    for what in ("engine", "trainer"):
        assert team.processes("planner")[what] == team.processes("worker")[what] is not None
    assert len(_trainers_of(team)) == 1
    assert "one trainer for the adapters of this policy and of worker" in team.command("status", "--policy", "planner")
    team.script(SCRIPT, "--steps", str(STEPS))
    for name in NAMES:
        policy = team.policy(name)
        assert (policy["steps_done"], policy["live_version"]) == (STEPS, STEPS)
        assert policy["problems"] == []
        assert all(version["probe_max_abs"] <= 1e-3 for version in policy["versions"])
        for step in policy["steps"]:
            assert abs(step["metrics"]["actor/ppo_kl"]) < 1e-4, "the trainer scores what this adapter sampled"
    planner, worker = (team.logprobs(name) for name in NAMES)
    assert min(far_apart(base, planner), far_apart(base, worker)) > 1e-2, "both are trained"
    # Both learn the same task to its limit: how far from each other they end is chance, but not that it is more than
    # rounding.
    assert far_apart(planner, worker) > 10 * SAME, "neither is the other"


def test_the_trainer_comes_back_with_both_each_from_its_own_checkpoint(team):
    made = {name: _checksums(team, name) for name in NAMES}
    killed = team.processes("planner")["trainer"]
    os.kill(killed, signal.SIGKILL)
    team.script(SCRIPT, "--steps", str(STEPS + 1))
    for name in NAMES:
        assert team.policy(name)["live_version"] == STEPS + 1
        assert _checksums(team, name).items() >= made[name].items(), "what was repeated is what it was"
    trainers = {team.processes(name)["trainer"] for name in NAMES}
    assert len(trainers) == len(_trainers_of(team)) == 1
    assert killed not in trainers


def test_one_is_rolled_back_and_the_other_stays(team, far_apart):
    planner, worker = (team.logprobs(name) for name in NAMES)
    assert "worker serves version" in team.command("rollback", f"worker@v{STEPS - 1}")
    assert far_apart(team.logprobs("worker"), worker) > SAME
    assert far_apart(team.logprobs("planner"), planner) < SAME


def test_the_engine_comes_back_with_both(team, far_apart):
    served = {name: team.logprobs(name) for name in NAMES}
    os.kill(team.processes("planner")["engine"], signal.SIGKILL)
    for name, before in served.items():
        assert far_apart(team.logprobs(name), before) < SAME

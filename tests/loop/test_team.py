"""Two policies of one team, trained together on rollouts that need both; one of them is shared by two agents."""

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_trainer.store.tables.steps import select_batches

pytestmark = [pytest.mark.loop, pytest.mark.engine, pytest.mark.verl, pytest.mark.slow]

SCRIPT = Path(__file__).parent / "scripts" / "team_script.py"
STEPS = 20
POLICY = """
[[policy]]
name = "{name}"
agents = ["{agents}"]
model = "random:tiny"
group_size = 8
groups_per_step = 2
max_sample_tokens = 256
checkpoint_every = 2
optimizer.lr = {lr}
"""


@pytest.fixture(scope="module")
def team(make_daemon) -> Iterator:
    policies = POLICY.format(name="planner", agents="planner", lr=1e-2)
    # Near the end all attempts may earn everything; left out, they would make no version.
    policies += "algorithm.drop_zero_variance_groups = false\n"
    policies += POLICY.format(name="worker", agents="worker_*", lr=1e-2) + 'algorithm = "dr_grpo"\n'
    with make_daemon(policies).running("planner", "worker") as daemon:
        yield daemon


def scores(team, steps: int) -> dict[str, float]:
    return json.loads(team.script(SCRIPT, "--steps", str(steps)).splitlines()[-1])


def test_each_agent_of_a_team_gets_better_at_its_part(team):
    before = scores(team, 0)
    after = scores(team, STEPS)
    print(f"held-out before {before}, after {STEPS} steps {after}")
    for agent in ("planner", "worker_a", "worker_b"):
        assert after[agent] > before[agent] + 0.1
    assert after["team"] > before["team"] + 0.1
    for name in ("planner", "worker"):
        policy = team.policy(name)
        assert (policy["steps_done"], policy["live_version"]) == (STEPS, STEPS)
        assert policy["problems"] == []
    assert [version["checksum"] for version in team.policy("planner")["versions"][1:]] != [
        version["checksum"] for version in team.policy("worker")["versions"][1:]
    ]


def test_every_token_is_trained_once_by_the_policy_that_sampled_it(team):
    agents = {"planner": {"planner"}, "worker": {"worker_a", "worker_b"}}
    with team.database() as database:
        for name, own in agents.items():
            batches = select_batches(database, name, after=0)
            samples = [sample for batch in batches for sample in batch.samples]
            trained = [segment.transition_id for sample in samples for segment in sample.segments]
            assert len(trained) == len(set(trained)) > 0
            assert {sample.agent for sample in samples} == own
            consumed = Counter(
                attempt
                for (attempt,) in database.execute("SELECT attempt_id FROM assignments WHERE policy = ?", [name])
            )
            assert set(consumed.values()) == {1}
            assert len(consumed) == STEPS * 2 * 8
    for name, own in agents.items():
        for row in team.policy(name)["ledger"]:
            assert (row["agent"] in own) == (row["policy"] == name) == (row["reason"] != "other_policy")
            assert row["outcome"] == "trained" if row["reason"] == "sampled" else True
        sampled = sum(row["tokens"] for row in team.policy(name)["ledger"] if row["agent"] in own)
        assert sampled == STEPS * 2 * 8 * 8 * len(own)


def test_one_trainer_dies_and_both_policies_go_on(team):
    made = {
        name: {v["version"]: v["checksum"] for v in team.policy(name)["versions"]} for name in ("planner", "worker")
    }
    untouched = team.processes("worker")["trainer"]
    os.kill(team.processes("planner")["trainer"], signal.SIGKILL)
    scores(team, STEPS + 1)
    for name, known in made.items():
        found = {v["version"]: v["checksum"] for v in team.policy(name)["versions"]}
        assert found.items() >= known.items()
        assert team.policy(name)["live_version"] == STEPS + 1
    assert team.processes("worker")["trainer"] == untouched


def test_the_commands_tell_the_policies_apart(team):
    assert json.loads(team.command("status", "--json")).keys() == {"planner", "worker"}
    shown = team.command("status", "--policy", "worker")
    assert f"serving worker@v{STEPS + 1}" in shown
    assert "planner@" not in shown
    assert len(json.loads(team.command("versions", "--policy", "worker", "--json"))) == STEPS + 2
    served = team.logprobs("planner")
    assert "worker serves version" in team.command("rollback", f"worker@v{STEPS}")
    assert team.policy("worker")["live_version"] == STEPS
    assert team.policy("planner")["live_version"] == STEPS + 1
    assert team.logprobs("planner") == served
    rows = (team.folder / "state" / "metrics" / "worker.jsonl").read_text().splitlines()
    assert len(rows) == STEPS + 1
    assert "planner: step 1: reward" in team.log.read_text()

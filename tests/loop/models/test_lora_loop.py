"""A policy whose adapter is trained, proven beside the model and served: daemon, vLLM, verl and agents, all real."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
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
checkpoint_every = 2
versions.keep_last = 2
optimizer.lr = 1e-2
lora = { rank = 4, alpha = 8 }
"""


@pytest.fixture(scope="module")
def daemon(make_daemon) -> Iterator:
    with make_daemon(POLICY, training='backend = "inprocess"').running("tiny") as daemon:
        yield daemon


def test_each_step_serves_an_adapter_that_was_proven(daemon, far_apart):
    start, version, _ = daemon.answer("tiny")
    assert version == "0"
    daemon.script(AGENT, "--steps", "2")
    second, version, model = daemon.answer("tiny")
    assert (version, model) == ("2", "tiny")
    assert far_apart(start, second) > 1e-3
    daemon.script(AGENT, "--steps", "3")
    status = daemon.policy("tiny")
    assert {row["version"]: row["state"] for row in status["versions"]} == {
        **dict.fromkeys(range(3), "retired"),
        3: "live",
    }
    assert all(row["probe_max_abs"] <= 1e-3 for row in status["versions"])
    for step in status["steps"]:
        assert abs(step["metrics"]["actor/ppo_kl"]) < 1e-4  # on-policy: the trainer scores what the adapter sampled
    assert far_apart(daemon.logprobs("tiny@v2"), second) < 1e-4
    assert daemon.answer("tiny@v2")[1:] == ("2", "tiny@v2")
    assert daemon.answer("tiny").version == "3"
    assert daemon.processes("tiny")["old_version_engine"] is None, "one engine serves both"


def test_what_is_kept_is_an_adapter_and_no_model(daemon):
    folder = daemon.folder / "state" / "versions" / "tiny" / "v00000003"
    assert {file.name for file in folder.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "publication.json",
    }
    checkpoint = daemon.folder / "state" / "checkpoints" / "tiny" / "step-00000002"
    assert (checkpoint / "adapter" / "adapter_config.json").is_file()
    assert not (checkpoint / "huggingface").exists()


def test_what_is_trained_carries_the_version_that_sampled_it(daemon):
    query = "SELECT step, policy_version FROM ledger WHERE outcome = 'trained' ORDER BY step"
    with daemon.database() as database:
        versions = database.execute(query).fetchall()
    assert {tuple(row) for row in versions} == {(1, 0), (2, 1), (3, 2)}  # step n is trained on what n - 1 sampled


def test_after_the_engine_was_killed_the_live_adapter_is_loaded_again(daemon, far_apart):
    live = daemon.logprobs("tiny")
    old = daemon.logprobs("tiny@v2")
    pid = daemon.processes("tiny")["engine"]
    os.kill(pid, signal.SIGKILL)
    again, version, _ = daemon.answer("tiny")
    assert version == "3"
    assert far_apart(live, again) < 1e-4
    assert far_apart(old, daemon.logprobs("tiny@v2")) < 1e-4
    assert not psutil.pid_exists(pid)


def test_a_restarted_daemon_goes_on_with_the_adapter(daemon, far_apart):
    live = daemon.logprobs("tiny")
    daemon.stop()
    daemon.start("tiny")
    again, version, _ = daemon.answer("tiny")
    assert version == "3"
    assert far_apart(live, again) < 1e-4
    daemon.script(AGENT, "--steps", "4")
    assert daemon.policy("tiny")["live_version"] == 4

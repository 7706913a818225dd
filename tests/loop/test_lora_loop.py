"""A policy whose adapter is trained, proven beside the model and served: daemon, vLLM, verl and agents, all real."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.loop, pytest.mark.engine, pytest.mark.verl, pytest.mark.slow]

AGENT = Path(__file__).with_name("agent_script.py")
CONFIG = """
[daemon]
port = 0
state_dir = "state"
[engine]
dtype = "float32"
max_model_len = 512
max_num_seqs = 8
kv_cache_gib = 0.25
[training]
backend = "inprocess"
dtype = "float32"
threads = 1
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


class Run:
    """A daemon on a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "daemon.log"
        (folder / "lightning.toml").write_text(CONFIG)
        self.process: subprocess.Popen | None = None
        self.url = ""

    def start(self) -> None:
        command = [sys.executable, "-m", "lightning_trainer", "serve", "--config", str(self.folder / "lightning.toml")]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        announced = self.folder / "state" / "daemon.json"
        deadline = time.monotonic() + 400
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            if announced.exists() and (text := announced.read_text()):
                self.url = json.loads(text)["url"]
                if self.policy()["phase"] == "collecting":
                    return
            time.sleep(0.5)
        raise AssertionError(self.log.read_text()[-3000:])

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(120)

    def get(self, path: str) -> dict:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=60) as response:
            return json.load(response)

    def policy(self) -> dict:
        return self.get("/lightning/policies/tiny")

    def train_to(self, steps: int) -> None:
        environment = os.environ | {
            "LIGHTNING_ENDPOINT": self.url,
            "LIGHTNING_SPOOL_DIR": str(self.folder / "spool"),
            "OPENAI_BASE_URL": f"{self.url}/v1",
        }
        command = [sys.executable, str(AGENT), "--steps", str(steps)]
        done = subprocess.run(command, env=environment, timeout=200, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:] + self.log.read_text()[-3000:]

    def answer(self, model: str = "tiny") -> tuple[list[float], str, str]:
        """Log-probabilities of a fixed continuation, the version that sampled it, and the model that it names."""
        body = {
            "model": model,
            "messages": [{"role": "user", "content": "a fixed question"}],
            "max_tokens": 4,
            "ignore_eos": True,
            "temperature": 0,
            "logprobs": True,
            "return_token_ids": True,
        }
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as response:
            version = response.headers["x-lightning-policy-version"]
            document = json.load(response)
        logprobs = [token["logprob"] for token in document["choices"][0]["logprobs"]["content"]]
        return logprobs, version, document["model"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("lora"))
    run.start()
    try:
        yield run
    finally:
        run.stop()


def far_apart(one, other) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def test_each_step_serves_an_adapter_that_was_proven(run):
    start, version, _ = run.answer()
    assert version == "0"
    run.train_to(2)
    second, version, model = run.answer()
    assert (version, model) == ("2", "tiny")
    assert far_apart(start, second) > 1e-3
    run.train_to(3)
    status = run.policy()
    assert {row["version"]: row["state"] for row in status["versions"]} == {
        **dict.fromkeys(range(3), "retired"),
        3: "live",
    }
    assert all(row["probe_max_abs"] <= 1e-3 for row in status["versions"])
    for step in status["steps"]:
        assert abs(step["metrics"]["actor/ppo_kl"]) < 1e-4  # on-policy: the trainer scores what the adapter sampled
    assert far_apart(run.answer("tiny@v2")[0], second) < 1e-4
    assert run.answer("tiny@v2")[1:] == ("2", "tiny@v2")
    assert run.answer()[1] == "3"
    processes = run.get("/lightning/status")["policies"]["tiny"]["processes"]
    assert processes["old_version_engine"] is None, "one engine serves both"


def test_what_is_kept_is_an_adapter_and_no_model(run):
    folder = run.folder / "state" / "versions" / "tiny" / "v00000003"
    assert {file.name for file in folder.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "publication.json",
    }
    checkpoint = run.folder / "state" / "checkpoints" / "tiny" / "step-00000002"
    assert (checkpoint / "adapter" / "adapter_config.json").is_file()
    assert not (checkpoint / "huggingface").exists()


def test_what_is_trained_carries_the_version_that_sampled_it(run):
    database = sqlite3.connect(f"file:{run.folder / 'state' / 'lightning.sqlite'}?mode=ro", uri=True)
    try:
        query = "SELECT step, policy_version FROM ledger WHERE outcome = 'trained' ORDER BY step"
        versions = database.execute(query).fetchall()
    finally:
        database.close()
    assert {tuple(row) for row in versions} == {(1, 0), (2, 1), (3, 2)}  # step n is trained on what n - 1 sampled


def test_after_the_engine_was_killed_the_live_adapter_is_loaded_again(run):
    live, *_ = run.answer()
    old, *_ = run.answer("tiny@v2")
    pid = run.get("/lightning/status")["policies"]["tiny"]["processes"]["engine"]
    os.kill(pid, signal.SIGKILL)
    again, version, _ = run.answer()
    assert version == "3"
    assert far_apart(live, again) < 1e-4
    assert far_apart(old, run.answer("tiny@v2")[0]) < 1e-4
    assert not psutil.pid_exists(pid)


def test_a_restarted_daemon_goes_on_with_the_adapter(run):
    live, *_ = run.answer()
    run.stop()
    run.start()
    again, version, _ = run.answer()
    assert version == "3"
    assert far_apart(live, again) < 1e-4
    run.train_to(4)
    assert run.policy()["live_version"] == 4

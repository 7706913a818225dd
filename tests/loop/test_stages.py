"""SFT from a file, DPO on live groups, then RL: one configuration, with real daemon, engine, trainer and agent.

The tests follow each other on one daemon; the last one kills the trainer.
"""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_trainer.store.steps import select_batches

pytestmark = [pytest.mark.loop, pytest.mark.engine, pytest.mark.verl]

AGENT = Path(__file__).with_name("agent_script.py")
ANSWERS = ("a tale of two cities", "fish", "the sea, the sea")
SHOWN_STEPS, STEPS = 4, 7
TIMEOUT_S = 400

CONFIG = """
[daemon]
port = {port}
state_dir = "state"
[engine]
dtype = "float32"
max_model_len = 512
max_num_seqs = 8
kv_cache_gib = 0.25
[training]
dtype = "float32"
threads = 1
[[policy]]
name = "tiny"
agents = ["tester"]
model = "random:tiny"
group_size = 2
groups_per_step = 2
max_sample_tokens = 256
checkpoint_every = 100
[[policy.stage]]
algorithm = "sft"
data = "demonstrations.jsonl"
batch_size = 2
steps = 4
lr = 1e-2
[[policy.stage]]
algorithm = "dpo"
steps = 1
[[policy.stage]]
algorithm = "grpo"
steps = 2
lr = 1e-3
"""


class Run:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.config = str(folder / "lightning.toml")
        Path(self.config).write_text(CONFIG.format(port=self.port))
        rows = [
            {
                "prompt": [{"role": "user", "content": f"say {n}"}],
                "completion": [{"role": "assistant", "content": text}],
            }
            for n, text in enumerate(ANSWERS)
        ]
        (folder / "demonstrations.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        url = f"http://127.0.0.1:{self.port}"
        self.environment = os.environ | {
            "LIGHTNING_ENDPOINT": url,
            "LIGHTNING_SPOOL_DIR": str(folder / "spool"),
            "OPENAI_BASE_URL": f"{url}/v1",
        }
        with (folder / "daemon.log").open("wb") as log:
            self.daemon = subprocess.Popen(
                [sys.executable, "-m", "lightning_trainer", "serve", "--config", self.config],
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def log(self) -> str:
        return (self.folder / "daemon.log").read_text()[-3000:]

    def get(self, path: str) -> dict:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as response:
            return json.load(response)

    def policy(self) -> dict:
        return self.get("/lightning/policies/tiny")

    def until_steps(self, steps: int) -> dict:
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            assert self.daemon.poll() is None, self.log()
            try:
                if (status := self.policy())["steps_done"] >= steps and status["live_version"] == steps:
                    return status
            except OSError:
                pass  # it is not listening yet
            time.sleep(0.5)
        raise AssertionError(f"no {steps} steps after {TIMEOUT_S} s: {self.log()}")

    def run_agent(self) -> None:
        done = subprocess.run(
            [sys.executable, str(AGENT), "--steps", str(STEPS)],
            env=self.environment,
            timeout=TIMEOUT_S,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-3000:] + self.log()

    def batches(self) -> list:
        database = sqlite3.connect(f"file:{self.folder / 'state' / 'lightning.sqlite'}?mode=ro", uri=True)
        try:
            return select_batches(database, "tiny", after=0)
        finally:
            database.close()

    def stop(self) -> None:
        self.daemon.send_signal(signal.SIGINT)
        try:
            self.daemon.wait(120)
        except subprocess.TimeoutExpired:
            self.daemon.kill()
            raise


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    run = Run(tmp_path_factory.mktemp("stages"))
    try:
        yield run
    finally:
        run.stop()


def test_the_demonstrations_are_learned_without_any_agent(run: Run):
    status = run.until_steps(SHOWN_STEPS)
    assert [step["metrics"]["data/rows"] for step in status["steps"]] == [2, 1, 2, 1], "three rows, two passes"
    assert [step["metrics"]["data/epoch"] for step in status["steps"]] == [0, 0, 1, 1]
    passes = [sum(step["metrics"]["sft/loss"] for step in status["steps"][n : n + 2]) for n in (0, 2)]
    assert passes[1] < passes[0]
    assert {version["version"]: version["state"] for version in status["versions"]} == {
        **dict.fromkeys(range(SHOWN_STEPS), "retired"),
        SHOWN_STEPS: "live",
    }


def test_only_the_answers_are_trained_and_every_token_of_them(run: Run):
    from lightning_trainer.models.resolve import model_cache, resolve_model
    from lightning_trainer.retokenise.tokenizer import PolicyTokenizer

    tokenizer = PolicyTokenizer(resolve_model("random:tiny", model_cache()))
    trained: Counter[str] = Counter()
    for sample in (sample for batch in run.batches() for sample in batch.samples):
        chosen = [token for token, bit in zip(sample.token_ids, sample.loss_mask, strict=True) if bit]
        trained[tokenizer.decoded(chosen)] += 1
    end = "<|im_end|>"
    assert trained == {f"{answer}{end}": 2 for answer in ANSWERS}
    told = {row["reason"]: row["tokens"] for row in run.policy()["ledger"] if row["reason"] == "demonstrated"}
    ledger = sum(row["tokens"] for row in run.policy()["ledger"])
    assert set(told) == {"demonstrated"}
    assert ledger == sum(step["tokens_trained"] for step in run.policy()["steps"])


def test_the_stages_after_it_take_what_the_agent_does(run: Run):
    run.run_agent()
    steps = run.until_steps(STEPS)["steps"]
    dpo, first, second = (step["metrics"] for step in steps[SHOWN_STEPS:])
    assert abs(dpo["dpo/loss"] - 0.6931) < 1e-3, "the reference is what the demonstrations left"
    assert abs(first["kl_loss"]) < 1e-5, "and then what DPO left"
    assert second["kl_loss"] > 0
    assert first["mismatch/abs_max"] < 1e-3
    assert dpo["groups/kept"] == first["groups/kept"] == 2
    sides = {segment.credit for sample in run.batches()[SHOWN_STEPS].samples for segment in sample.segments}
    assert sides == {1.0, -1.0}
    status = run.policy()
    assert status["phase"] == "finished"
    assert all(version["probe_max_abs"] <= 1e-3 for version in status["versions"])
    assert {row["outcome"] for row in status["ledger"]} == {"trained"}


def test_after_the_trainer_was_killed_all_stages_are_repeated_to_the_same_weights(run: Run):
    before = {version["version"]: version["checksum"] for version in run.policy()["versions"]}
    os.kill(run.get("/lightning/status")["policies"]["tiny"]["processes"]["trainer"], signal.SIGKILL)
    # A rollback asks the trainer for something: it is started anew and repeats every recorded step but the last.
    done = subprocess.run(
        [sys.executable, "-m", "lightning_trainer", "rollback", f"tiny@v{STEPS - 1}", "--config", run.config],
        env=run.environment,
        timeout=TIMEOUT_S,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:] + run.log()
    after = {version["version"]: version["checksum"] for version in run.policy()["versions"]}
    assert run.policy()["live_version"] == STEPS - 1
    assert after == before

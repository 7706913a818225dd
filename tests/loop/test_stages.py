"""SFT from a file, DPO on live groups, then RL: one configuration, with real daemon, engine, trainer and agent.

The tests follow each other on one daemon; the last one kills the trainer.
"""

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_trainer.store.tables.steps import select_batches

pytestmark = [pytest.mark.loop, pytest.mark.engine, pytest.mark.verl, pytest.mark.slow]

AGENT = Path(__file__).parent / "scripts" / "agent_script.py"
ANSWERS = ("a tale of two cities", "fish", "the sea, the sea")
SHOWN_STEPS, STEPS = 4, 7
POLICY = """
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


@pytest.fixture(scope="module")
def daemon(make_daemon) -> Iterator:
    daemon = make_daemon(POLICY)
    (daemon.folder / "demonstrations.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in demonstrations()))
    with daemon.running():  # its first stage starts by itself: it is never seen waiting for attempts
        yield daemon


def demonstrations() -> Iterator[dict]:
    for n, text in enumerate(ANSWERS):
        question, answer = {"role": "user", "content": f"say {n}"}, {"role": "assistant", "content": text}
        yield {"prompt": [question], "completion": [answer]}


def status_after(daemon, steps: int) -> dict:
    """The policy's status once these steps are done and their last version is live."""

    def done() -> bool:
        status = daemon.policy("tiny")
        return status["steps_done"] >= steps and status["live_version"] >= steps

    daemon.wait_until(done)
    return daemon.policy("tiny")


def batches(daemon) -> list:
    with daemon.database() as database:
        return select_batches(database, "tiny", after=0)


def test_the_demonstrations_are_learned_without_any_agent(daemon):
    status = status_after(daemon, SHOWN_STEPS)
    assert [step["metrics"]["data/rows"] for step in status["steps"]] == [2, 1, 2, 1], "three rows, two passes"
    assert [step["metrics"]["data/epoch"] for step in status["steps"]] == [0, 0, 1, 1]
    passes = [sum(step["metrics"]["sft/loss"] for step in status["steps"][n : n + 2]) for n in (0, 2)]
    assert passes[1] < passes[0]
    assert {version["version"]: version["state"] for version in status["versions"]} == {
        **dict.fromkeys(range(SHOWN_STEPS), "retired"),
        SHOWN_STEPS: "live",
    }


def test_only_the_answers_are_trained_and_every_token_of_them(daemon):
    from lightning_trainer.models.resolve import model_cache, resolve_model
    from lightning_trainer.retokenize.tokenizer import PolicyTokenizer

    tokenizer = PolicyTokenizer(resolve_model("random:tiny", model_cache()))
    trained: Counter[str] = Counter()
    for sample in (sample for batch in batches(daemon) for sample in batch.samples):
        chosen = [token for token, bit in zip(sample.token_ids, sample.loss_mask, strict=True) if bit]
        trained[tokenizer.decoded(chosen)] += 1
    end = "<|im_end|>"
    assert trained == {f"{answer}{end}": 2 for answer in ANSWERS}
    told = {row["reason"]: row["tokens"] for row in daemon.policy("tiny")["ledger"] if row["reason"] == "demonstrated"}
    ledger = sum(row["tokens"] for row in daemon.policy("tiny")["ledger"])
    assert set(told) == {"demonstrated"}
    assert ledger == sum(step["tokens_trained"] for step in daemon.policy("tiny")["steps"])


def finished(daemon) -> dict:
    """The policy's status after the last step, which is made where no test before has."""
    status_after(daemon, SHOWN_STEPS)
    daemon.script(AGENT, "--steps", str(STEPS))
    return status_after(daemon, STEPS)


def test_the_stages_after_it_take_what_the_agent_does(daemon):
    steps = finished(daemon)["steps"]
    dpo, first, second = (step["metrics"] for step in steps[SHOWN_STEPS:])
    assert abs(dpo["dpo/loss"] - 0.6931) < 1e-3, "the reference is what the demonstrations left"
    assert abs(first["kl_loss"]) < 1e-5, "and then what DPO left"
    assert second["kl_loss"] > 0
    assert first["mismatch/abs_max"] < 1e-3
    assert dpo["groups/kept"] == first["groups/kept"] == 2
    sides = {segment.credit for sample in batches(daemon)[SHOWN_STEPS].samples for segment in sample.segments}
    assert sides == {1.0, -1.0}
    status = daemon.policy("tiny")
    assert status["phase"] == "finished"
    assert all(version["probe_max_abs"] <= 1e-3 for version in status["versions"])
    assert {row["outcome"] for row in status["ledger"]} == {"trained"}


def test_after_the_trainer_was_killed_all_stages_are_repeated_to_the_same_weights(daemon):
    before = {version["version"]: version["checksum"] for version in finished(daemon)["versions"]}
    os.kill(daemon.processes("tiny")["trainer"], signal.SIGKILL)
    # A rollback asks the trainer for something: it is started anew and repeats every recorded step but the last.
    daemon.command("rollback", f"tiny@v{STEPS - 1}")
    after = {version["version"]: version["checksum"] for version in daemon.policy("tiny")["versions"]}
    assert daemon.policy("tiny")["live_version"] == STEPS - 1
    assert after == before

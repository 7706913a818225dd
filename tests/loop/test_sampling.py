"""Whatever a request asks of the sampler, the trainer computes the probability that the engine sampled with.

One daemon, real engine and trainer in float32: each step is sampled in another way (``sampling_script.WAYS``).
"""

import json
from pathlib import Path

import pytest

pytestmark = [pytest.mark.loop, pytest.mark.engine, pytest.mark.verl]

AGENT = Path(__file__).parent / "scripts" / "sampling_script.py"
WAYS = (
    "plain",
    "json_schema",
    "named tool",
    "top_p",
    "top_k",
    "min_p",
    "logit_bias",
    "penalties",
    "all at once",
)
"""In the order of the steps."""
FORCED = ("json_schema", "named tool", "all at once")
"""A grammar leaves one token here and there."""
POLICY = """
[[policy]]
name = "tiny"
agents = ["tester"]
model = "random:tiny"
group_size = 2
groups_per_step = 2
max_sample_tokens = 512
optimizer.lr = 1e-3
"""


@pytest.fixture(scope="module")
def steps(make_daemon) -> dict[str, dict[str, float]]:
    """The metrics of each way's step."""
    daemon = make_daemon(POLICY, engine='tool_call_parser = "hermes"', training='backend = "inprocess"')
    # A tool's description takes a part of the prompt.
    daemon.config.write_text(daemon.config.read_text().replace("max_model_len = 256", "max_model_len = 512"))
    with daemon.running("tiny"):
        daemon.script(AGENT)
    lines = (daemon.folder / "state" / "metrics" / "tiny.jsonl").read_text().splitlines()
    rows = {row["step"]: row for row in map(json.loads, lines)}
    assert len(rows) == len(WAYS), daemon.tail()
    return {way: rows[step] for step, way in enumerate(WAYS, start=1)}


@pytest.mark.parametrize("way", WAYS)
def test_the_trainers_probabilities_are_those_that_the_engine_sampled_with(steps, way):
    row = steps[way]
    assert row["mismatch/abs_mean"] < 1e-3
    assert row["mismatch/abs_max"] < 1e-2
    assert row["actor/pg_clipfrac"] < 0.02
    assert row["tokens/trained"] > 0


@pytest.mark.parametrize("way", WAYS)
def test_every_token_is_trained_or_was_no_choice(steps, way):
    row = steps[way]
    masked = row.get("ledger/masked/no_choice", 0.0)
    assert row["ledger/trained"] == row["tokens/trained"]
    assert row["ledger/dropped"] == 0
    assert (masked > 0) == (way in FORCED)
    assert (row["sampling/restricted"] > 0) == (way != "plain")
    sampled = row["ledger/trained"] + masked
    assert row["sampling/no_choice"] == pytest.approx(masked / sampled)

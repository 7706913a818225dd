"""A candidate answers beside the live version and goes live by what a judge says of both; all of it is real."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

pytestmark = [pytest.mark.loop, pytest.mark.engine, pytest.mark.verl, pytest.mark.slow]

TRAFFIC = Path(__file__).parent / "scripts" / "shadow_script.py"
JUDGE = """
def score(told):
    if ".shadow-v" in told["attempt_id"]:
        return 1.0
    return 0.5 if told["attempt_id"].endswith("-better") else 0.0
"""
POLICY = """
[[judge]]
name = "score"
kind = "program"
function = "judging.py:score"

[[policy]]
name = "tiny"
agents = ["tester"]
model = "random:tiny"
reward = "score"
group_size = 2
groups_per_step = 2
max_sample_tokens = 256
max_steps = 1
optimizer.lr = 1e-2
canary = { shadow = true, share = 0.5, tolerance = 0.5 }
"""


@pytest.mark.parametrize("more", ["", "lora = { rank = 4, alpha = 8 }\n"], ids=["all weights", "adapter"])
def test_a_version_goes_live_by_what_it_answered_beside_the_live_one(make_daemon, more: str):
    daemon = make_daemon(POLICY + more, training='backend = "inprocess"')
    (daemon.folder / "judging.py").write_text(JUDGE)
    with daemon.running("tiny"):
        answered = json.loads(daemon.script(TRAFFIC, "1", LIGHTNING_ENDPOINT=daemon.url))
        policy = daemon.policy("tiny")
        (row,) = (row for row in daemon.get("/lightning/policies/tiny/versions") if row["version"] == 1)
    assert policy["live_version"] == 1, daemon.tail()
    assert answered[0] == "0"
    canary = row["canary"]
    assert canary["state"] == "promoted"
    new, old = canary["evidence"]["means"]
    assert (new, old < 0.6) == (1.0, True)
    assert canary["evidence"]["shadow"]["failed"] == 0
    with closing(sqlite3.connect(daemon.folder / "state" / "lightning.sqlite")) as store:
        shadows = store.execute("SELECT count(*) FROM attempts WHERE mode = 'shadow' AND ended_ns NOT NULL").fetchone()
        trained = store.execute("SELECT count(*) FROM assignments WHERE attempt_id LIKE '%.shadow-v%'").fetchone()
    assert shadows[0] >= canary["evidence"]["rewards"][0] > 0
    assert trained == (0,)

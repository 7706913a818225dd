"""Two daemons on one PostgreSQL: both record and serve, one trains, and one that was stopped trains nothing more."""

import os
import signal
from pathlib import Path

import psycopg
import pytest

pytestmark = [pytest.mark.loop, pytest.mark.engine, pytest.mark.verl, pytest.mark.slow]

AGENT = Path(__file__).parents[1] / "scripts" / "agent_script.py"
SETTINGS = """
[store]
url = "{url}"
shared_dir = "{shared}"
turn_s = 4
[[policy]]
name = "tiny"
agents = ["tester"]
model = "random:tiny"
group_size = 2
groups_per_step = 2
max_sample_tokens = 256
checkpoint_every = 2
optimizer.lr = 1e-2
"""


def test_the_turn_goes_over_and_nothing_is_trained_twice(make_daemon, postgres, tmp_path):
    postgres.execute("CREATE SCHEMA two_daemons")
    settings = SETTINGS.format(url=postgres.url("two_daemons"), shared=tmp_path / "shared")
    one, other = make_daemon(settings), make_daemon(settings)
    with one.running("tiny"), other.running():
        other.wait_until(lambda: other.policy("tiny")["phase"] == "following")
        one.script(AGENT, "--steps", "1")
        other.wait_until(lambda: other.answer("tiny").version == "1")
        # What the second one records, the first one trains.
        other.script(AGENT, "--steps", "2")
        assert one.policy("tiny")["steps_done"] == 2
        assert one._process is not None
        os.kill(one._process.pid, signal.SIGSTOP)
        try:
            other.wait_until(lambda: other.policy("tiny")["phase"] == "collecting")
            other.script(AGENT, "--steps", "3")
        finally:
            os.kill(one._process.pid, signal.SIGCONT)
        one.wait_until(lambda: one.policy("tiny")["phase"] == "following")
        one.wait_until(lambda: one.answer("tiny").version == "3")
        assert one.logprobs("tiny") == pytest.approx(other.logprobs("tiny"), abs=1e-4)
        with psycopg.connect(postgres.url("two_daemons")) as connection:
            steps = connection.execute("SELECT step, state FROM steps ORDER BY step").fetchall()
            versions = connection.execute("SELECT version, state FROM versions ORDER BY version").fetchall()
        assert steps == [(1, "trained"), (2, "trained"), (3, "trained")]
        assert versions == [(0, "retired"), (1, "retired"), (2, "retired"), (3, "live")]
        for log in (one.log, other.log):
            assert postgres.password not in log.read_text()

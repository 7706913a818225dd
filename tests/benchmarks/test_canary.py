"""The benchmark of the canary runs as it says, with a few deployments of each kind."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from benchmarks.canary import real
from lightning_trainer.config import Config

ROOT = Path(__file__).parents[2]


@pytest.mark.process
def test_a_few_deployments_end_as_claimed():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.canary", "--deployments", "2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    rows = [line for line in done.stdout.splitlines() if "%" in line]
    assert [row.split("  ")[0] for row in rows[1:]] == ["10 points worse", "as good", "5 points better"], done.stderr
    assert "100.0%" in rows[1]


def test_the_configurations_of_the_real_run_differ_by_the_learning_rate_alone():
    configs = [Config.model_validate(tomllib.loads(real.configuration(rate))) for rate, _ in real.KINDS.values()]
    rates = [config.only_policy.optimizer.lr for config in configs]
    assert rates == [float(rate) for rate, _ in real.KINDS.values()]
    # The only step makes the candidate.
    assert all(config.only_policy.optimizer.warmup_steps == 0 for config in configs)
    assert all(config.only_policy.canary is not None for config in configs)

"""The benchmark of the canary runs as it says, with a few deployments of each kind."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


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

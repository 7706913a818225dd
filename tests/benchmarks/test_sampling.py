"""``benchmarks/sampling`` keeps working, small."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_way_of_sampling_is_measured(tmp_path):
    out = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks.sampling", "--quick", "--only", "cost", "--json", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert len(rows) == 6
    assert all(row["figure"] > 0 for row in rows)

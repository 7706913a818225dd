"""``benchmarks/store`` keeps working, small."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_answer_is_measured_beside_a_history_and_the_size_is_held(tmp_path):
    out = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks.store", "--quick", "--folder", str(tmp_path), "--json", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    rows = {row["what"]: row for row in json.loads(out.read_text())["rows"]}
    assert sum(what.startswith("GET ") for what in rows) == 18
    assert rows["size while 2,000 spans are written"]["met"]
    assert all(row["figure"] is not None for row in rows.values())

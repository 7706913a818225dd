"""``benchmarks/scale`` keeps working, small."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]


def _rows(out: Path, sections: str) -> dict[str, dict]:
    command = [sys.executable, "-m", "benchmarks.scale", "--quick", "--only", sections, "--json", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return {row["what"]: row for row in json.loads(out.read_text())["rows"]}


@pytest.mark.slow
@pytest.mark.torch
def test_daemons_and_weights_are_measured(tmp_path):
    rows = _rows(tmp_path / "figures.json", "ingest,weights")
    assert {row["section"] for row in rows.values()} == {"ingest", "weights"}
    assert all(row["figure"] > 0 for row in rows.values() if row["what"] != "PostgreSQL")


@pytest.mark.slow
def test_a_long_history_is_measured(tmp_path):
    rows = _rows(tmp_path / "figures.json", "store")
    assert all(row["figure"] > 0 for row in rows.values())
    for spans in ("100,000 spans", "300,000 spans"):
        assert rows[f"{spans}: file and log, retention on"]["figure"] < rows[f"{spans}: file"]["figure"]

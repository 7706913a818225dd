"""``benchmarks/transitions.py`` keeps working: its sections at small sizes, counts only, never times."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def rows(tmp_path):
    """Run it and return its rows by what they say."""

    def run(*arguments: str) -> dict[str, dict]:
        out = tmp_path / "figures.json"
        command = [sys.executable, "benchmarks/transitions.py", *arguments, "--json", str(out)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return {row["what"]: row for row in json.loads(out.read_text())["rows"]}

    return run


def test_every_span_of_a_workload_is_read_and_its_turns_are_merged(rows):
    found = rows("--only", "speed", "--most", "1000")
    assert list(found) == ["1,000 spans in one rollout", "1,000 spans in rollouts of 300", "a chain 1,000 spans deep"]
    assert "333 calls" in found["1,000 spans in one rollout"]["note"]
    assert "35 samples" in found["1,000 spans in one rollout"]["note"]


def test_merging_and_trees_compute_less_than_call_by_call(rows):
    found = rows("--only", "sharing")
    for turns in (5, 10, 20):
        calls, merged, tree = (
            found[f"{turns} turns, samples = {how}"]["figure"] for how in ("calls", "merged", "tree")
        )
        assert calls > merged >= tree >= 1.0

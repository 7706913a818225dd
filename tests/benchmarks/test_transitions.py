"""``benchmarks/transitions`` keeps working: its sections at small sizes, counts only, never times."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.transitions import speed

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]


@pytest.fixture
def rows(tmp_path):
    """Run it and return its rows by what they say."""

    def run(*arguments: str) -> dict[str, dict]:
        out = tmp_path / "figures.json"
        command = [sys.executable, "-m", "benchmarks.transitions", *arguments, "--json", str(out)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return {row["what"]: row for row in json.loads(out.read_text())["rows"]}

    return run


@pytest.mark.slow
def test_every_span_of_a_workload_is_read_and_its_turns_are_merged(rows):
    found = rows("--only", "speed", "--most", "1000")
    assert list(found) == ["1,000 spans in one rollout", "1,000 spans in rollouts of 300", "a chain 1,000 spans deep"]
    assert "333 calls" in found["1,000 spans in one rollout"]["note"]
    assert "35 samples" in found["1,000 spans in one rollout"]["note"]
    for row in found.values():
        _, runs = row["note"].rsplit("runs of ", 1)
        assert len(runs.split(", ")) == 3


def test_growth_is_judged_at_the_median_of_all_that_was_seen():
    row = speed._grown("one", [11.0, 13.0, 14.0])  # the best of them would pass
    assert (row.figure, row.met, row.goal) == (13.0, False, "<= 12 (median of 3)")
    assert "11.00, 13.00, 14.00" in row.note


def test_the_figure_of_a_size_is_the_median_of_its_runs(monkeypatch):
    runs = iter([3.0, 1.0, 2.0])
    monkeypatch.setattr(speed, "in_a_process", lambda kind, spans: {"seconds": next(runs)})
    measured, all_s = speed.median_of_runs("one", 1_000)
    assert (measured["seconds"], all_s) == (2.0, [3.0, 1.0, 2.0])


def test_merging_and_trees_compute_less_than_call_by_call(rows):
    found = rows("--only", "sharing")
    for turns in (5, 10, 20):
        calls, merged, tree = (
            found[f"{turns} turns, samples = {how}"]["figure"] for how in ("calls", "merged", "tree")
        )
        assert calls > merged >= tree >= 1.0

"""The benchmark of rewards runs as it says, with a few runs of each kind."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.rewards.learning import arms, learning

ROOT = Path(__file__).parents[2]


@pytest.mark.process
def test_a_few_runs_print_both_tables():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.rewards", "--runs", "9"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    judges, sources = done.stdout.split("\n\n")
    assert [line.split()[0] for line in judges.splitlines()[1:]] == ["0%", "10%", "20%", "30%"], done.stderr
    assert [line.split()[0] for line in sources.splitlines()[1:]] == ["0%", "10%"]
    assert done.returncode == 0, done.stdout


def test_learning_goes_on_where_it_was_and_its_claim_can_fail(tmp_path, capsys):
    """Of runs that have a line none is made again; here all have one."""
    for corrected, holds in ((0.76, True), (0.74, False)):
        success = {"true": 0.8, "plain": 0.1, "corrected": corrected}
        lines = [json.dumps({"arm": asdict(arm), "success": success[arm.reward]}) for arm in arms(quick=False)]
        assert len(lines) == len(set(lines)) == 24
        (tmp_path / "results.jsonl").write_text("\n".join(lines))
        assert learning(tmp_path / "results.jsonl", quick=False) is holds
        table = capsys.readouterr().out.splitlines()
        assert table[-1].split() == ["30%", "80.0%", "10.0%", f"{corrected:.1%}"]

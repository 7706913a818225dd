"""The benchmark of rewards runs as it says, with a few runs of each kind."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


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

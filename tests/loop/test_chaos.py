"""Faults at random over every process, disk and store: the run ends where an undisturbed one does.

What happens, and what is compared, is in ``benchmarks/hostile/chaos/run.py``.

    pytest -m slow tests/loop/test_chaos.py -s            # about an hour on two cores
    FAULTS=200 FAULTS_SEED=3 FAULTS_A_STEP=25 pytest -m slow tests/loop/test_chaos.py -s
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.loop, pytest.mark.engine, pytest.mark.verl, pytest.mark.slow, pytest.mark.timeout(0)]

ROOT = Path(__file__).parents[2]
FAULTS = int(os.environ.get("FAULTS", "40"))
SEED = os.environ.get("FAULTS_SEED", "0")
FAULTS_A_STEP = os.environ.get("FAULTS_A_STEP", "20")


def test_the_run_ends_where_an_undisturbed_one_does(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks.hostile", "--only", "chaos", "--faults", str(FAULTS), "--seed", SEED]
    command += ["--faults-a-step", FAULTS_A_STEP, "--json", str(out)]
    subprocess.run(command, cwd=ROOT, check=True)
    rows = {row["what"]: row for row in json.loads(out.read_text())["rows"]}
    assert rows["faults"]["figure"] == FAULTS
    assert [f"{what}: {row['figure']} {row['note']}" for what, row in rows.items() if row["met"] is False] == []

"""The benchmark of rewards runs as it says, with a few runs of each kind."""

import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

import pytest

from benchmarks.rewards.learning import Arm, arms, learning

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "rewards.md"
MADE = ROOT / "docs" / "proof" / "rewards-learning.jsonl"


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


def test_what_learning_found_is_the_table_of_the_page_and_its_claim_holds(capsys):
    """docs/rewards.md. A run that has no line would start an engine, so that is looked at first."""
    told = [json.loads(line) for line in MADE.read_text(encoding="utf-8").splitlines()]
    success = {Arm(**one["arm"]): one["success"] for one in told}
    assert [arm for arm in arms(quick=False) if arm not in success] == []
    assert learning(MADE, quick=False)
    printed = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()[-4:]}
    written = {}
    for rate, corrected, fixed, plain, mean in re.findall(
        r"^\| (never|at \d+ %) \| ([\d., %]+) \| ([\d.]+ %) \| ([\d., %]+)[^|]*\| ([\d.]+ %) \|$",
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE,
    ):
        noise = 0.0 if rate == "never" else float(rate.split()[1]) / 100
        for reward, shown, average in (("corrected", corrected, fixed), ("plain" if noise else "true", plain, mean)):
            runs = [success[arm] for arm in arms(quick=False) if (arm.reward, arm.rate) == (reward, noise)]
            assert [f"{one:.1%}" for one in runs] == [f"{one}%" for one in re.findall(r"[\d.]+(?= %)", shown)]
            assert f"{fmean(runs):.1%}" == average.replace(" ", "")
        written[f"{noise:.0%}"] = [mean.replace(" ", ""), fixed.replace(" ", "")]
    assert {rate: means[1:] for rate, means in printed.items()} == written

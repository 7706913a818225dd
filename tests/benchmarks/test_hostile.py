"""``benchmarks/hostile``: what it sends stays harmless, at a small size (chaos: ``tests/loop/test_chaos.py``)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]


def hostile(tmp_path: Path, *arguments: str) -> dict[str, dict]:
    """Run it and return its rows by what they say."""
    out = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.hostile", *arguments, "--json", str(out)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout
    return {row["what"]: row for row in json.loads(out.read_text())["rows"]}


def missed(rows: dict[str, dict], *but: str) -> list[str]:
    """What was not met, but for times: a busy machine is nobody's defect."""
    return [
        f"{what}: {row['figure']} {row['note']}"
        for what, row in rows.items()
        if row["met"] is False and what not in but
    ]


def test_no_body_ends_in_an_exception_and_good_attempts_are_still_built_into_samples(tmp_path: Path) -> None:
    rows = hostile(tmp_path, "--quick", "--only", "fuzz")
    assert rows["fuzzed bodies in process"]["figure"] == 6_000
    assert rows["routes that nothing came to"]["figure"] == 0, rows["routes that nothing came to"]["note"]
    assert rows["good attempts that the loop takes and builds into samples"]["figure"] == 26
    assert missed(rows, "good requests, p99") == []


@pytest.mark.parametrize("section", ["storm", "storm-tls"])
def test_a_good_client_is_served_beside_slow_half_open_and_flooding_ones(tmp_path: Path, section: str) -> None:
    rows = hostile(tmp_path, "--quick", "--only", section)
    assert rows["hostile clients at once"]["figure"] == 60
    assert missed(rows, "good requests, p99") == []

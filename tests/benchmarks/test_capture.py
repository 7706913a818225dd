"""``benchmarks/capture`` keeps working: its cheapest sections at tiny sizes, counts only, never times."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]


def capture(tmp_path: Path, *arguments: str) -> dict[str, dict]:
    """Run it and return its rows by what they say."""
    out = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.capture", "--tiny", *arguments, "--json", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "goals met" in done.stdout
    return {row["what"]: row for row in json.loads(out.read_text())["rows"]}


def test_every_cell_of_the_openai_client_is_complete(tmp_path: Path) -> None:
    rows = capture(tmp_path, "--only", "matrix", "--frameworks", "openai")
    cells = {what: row for what, row in rows.items() if what.startswith("openai/")}
    made = {"sync": 4, "async": 2, "stream": 3}
    assert {what: row["figure"] for what, row in cells.items()} == {
        f"openai/{mode}/{load}": calls * rollouts
        for mode, calls in made.items()
        for load, rollouts in (("single", 1), ("concurrent", 3))
    }
    assert [row["note"] for row in cells.values() if not row["met"]] == []
    assert rows["complete cells"]["figure"] == 6


def test_what_ingest_acknowledged_is_stored_and_the_gateway_records_every_call(tmp_path: Path) -> None:
    rows = capture(tmp_path, "--only", "ingest,gateway")
    assert rows["spans sent and not stored"]["figure"] == 0
    assert rows["spans sent and not stored"]["unit"] == "of 600"
    assert rows["calls not recorded (whole)"]["figure"] == 0
    assert rows["calls not recorded (streams)"]["figure"] == 0
    assert rows["streams that failed, 5 at once"]["figure"] == 0
    assert rows["spans per CPU-second to the commit"]["goal"] == ">= 8000"


@pytest.mark.slow
def test_the_cost_of_a_call_is_measured_on_calls_that_were_captured(tmp_path: Path) -> None:
    rows = capture(tmp_path, "--only", "cost")
    ours = [row for what, row in rows.items() if ": ours" in what]
    assert len(ours) == 6
    assert not any("NOT CAPTURED" in row["note"] for row in ours)
    judged = [row for row in ours if row["goal"]]
    assert [row["goal"] for row in judged] == [f"<= {goal} (5th percentile)" for goal in (0.4, 0.4, 0.2)]
    assert {what.replace("5th percentile", "median") for what in rows if "5th" in what} == {
        what for what in rows if "median" in what
    }


@pytest.mark.parametrize("arguments", [["--only", "speed"], ["--only", ""]])
def test_an_unknown_section_is_refused_with_the_ones_that_exist(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.capture", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "choose from cost, loss, ingest, gateway, absent, matrix" in done.stderr

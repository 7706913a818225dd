"""What learns from the same tasks in several ways is compared over several runs, which are kept."""

import json

import pytest

from benchmarks.training import learning

ARMS = ("plain", "2 mini-batches", "2 epochs", "forced tool")


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Count the runs that are made; each earns 0.1 more a step, less what its arm loses."""
    monkeypatch.chdir(tmp_path)
    counted, loses = [], {}

    def learned(arm):
        counted.append(arm.name)
        return [
            {
                "step": step,
                "cpu_s": 60.0 * step,
                "reward/mean": 0.1 * step - loses.get(arm.name, 0.0) * (step > 6),
                "mismatch/abs_mean": 1e-6,
                "actor/pg_clipfrac": 0.03,
                "other": "left out",
            }
            for step in range(1, arm.steps + 1)
        ]

    monkeypatch.setattr(learning, "learned", learned)
    return counted, loses


def _verdicts(rows):
    return {row.what: row.met for row in rows if row.goal}


def test_three_runs_of_each_are_made_once(made):
    counted, _ = made
    rows = learning.run(quick=False)
    assert counted == [*ARMS] * 3
    assert learning.run(quick=False) == rows
    assert len(counted) == 12
    assert "other" not in learning.RESULTS.read_text()


def test_an_interrupted_benchmark_goes_on_where_it_was(made):
    counted, _ = made
    learning.run(quick=False)
    lines = learning.RESULTS.read_text().splitlines(keepends=True)
    learning.RESULTS.write_text("".join(lines[:6]))
    counted.clear()
    learning.run(quick=False)
    assert counted == ["2 epochs", "forced tool", *ARMS]
    assert [json.loads(line)["arm"] for line in learning.RESULTS.read_text().splitlines()] == [*ARMS] * 3


@pytest.mark.parametrize(("arm", "row"), [("2 epochs", "reward at 13"), ("forced tool", "gain in reward")])
def test_what_learns_less_misses_the_goal(made, arm, row):
    _, loses = made
    loses[arm] = 0.2
    verdicts = _verdicts(learning.run(quick=False))
    (missed,) = (name for name, met in verdicts.items() if row in name and arm in name)
    assert not verdicts.pop(missed)
    clipped = {name for name in verdicts if "clipped" in name}
    assert clipped == {f"{name}: clipped tokens" for name in ARMS if name != "2 epochs"}
    assert not any(verdicts[name] for name in clipped)
    assert all(met for name, met in verdicts.items() if name not in clipped)

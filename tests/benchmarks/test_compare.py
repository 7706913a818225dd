"""``benchmarks/compare`` runs each commit's benchmark on that commit's own code, and leaves nothing behind."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.compare.__main__ import compared
from benchmarks.compare.checkout import CannotCompare, Checkout, checkout, figures

PROGRAM = """
import json, subprocess, sys
code = "from lightning_trainer import FIGURE; print(FIGURE)"  # in a process that begins somewhere else
figure = float(subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True, check=True).stdout)
rows = [{"section": "speed", "what": "calls", "figure": figure, "unit": "ms"}, {"section": "speed", "what": "peers"}]
open(sys.argv[sys.argv.index("--json") + 1], "w").write(json.dumps({"rows": rows}))
"""
KEY = ("speed", "calls", "ms")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose first commit measures 2 by a program, ``benchmarks/toy.py``, and its second 3 by a package."""
    root = tmp_path / "repository"
    for folder in ("benchmarks/toy", "lightning_trainer"):
        (root / folder).mkdir(parents=True)
    (root / "lightning_trainer/__init__.py").write_text("FIGURE = 2\n")
    (root / "benchmarks/toy.py").write_text(PROGRAM)
    git(root, "init", "--quiet")
    commit(root)
    (root / "benchmarks/toy.py").unlink()
    (root / "benchmarks/toy/__init__.py").write_text("")
    (root / "benchmarks/toy/__main__.py").write_text(PROGRAM)
    (root / "lightning_trainer/__init__.py").write_text("FIGURE = 3\n")
    commit(root)
    return root


def commit(root: Path) -> None:
    git(root, "add", ".")
    git(root, "-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "--quiet", "--message", "a change")


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True).stdout


def test_each_commit_is_measured_with_its_own_benchmark_and_code(repository: Path):
    with checkout(repository, "HEAD~1") as before, checkout(repository, "HEAD") as after:
        assert figures(before, "toy", ["--quick"]) == {KEY: 2.0}
        assert figures(after, "toy", []) == {KEY: 3.0}
    assert not before.folder.exists()
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_what_cannot_be_compared_is_said_in_a_sentence(repository: Path):
    with pytest.raises(CannotCompare, match="'of-nobody' cannot be checked out"), checkout(repository, "of-nobody"):
        pass
    here = Checkout(repository, Path(sys.executable))
    with pytest.raises(CannotCompare, match=r"there is no benchmarks\.other"):
        figures(here, "other", [])
    # As ``benchmarks.algorithms`` does
    (repository / "benchmarks/toy/__main__.py").write_text("import sys\nopen(sys.argv[-1], 'w').write('[{}]')\n")
    with pytest.raises(CannotCompare, match="prints no figures of one commit"):
        figures(here, "toy", [])
    (repository / "benchmarks/toy/__main__.py").write_text("import sys\nsys.exit('no engine is to be had')\n")
    with pytest.raises(CannotCompare, match="ended without figures: no engine is to be had"):
        figures(here, "toy", [])


@pytest.mark.parametrize(
    ("after", "changed", "ratio"),
    [([2.0, 2.3, 2.1], "", "1.05"), ([3.0, 2.6, 2.5], "higher", "1.30"), ([1.0, 1.2, 0.8], "lower", "0.50")],
)
def test_a_figure_changed_where_the_ranges_do_not_meet(after: list[float], changed: str, ratio: str):
    table = compared("toy", [{KEY: value} for value in (1.9, 2.0, 2.2)], [{KEY: value} for value in after])
    assert [list(column.cells) for column in table.columns][3:] == [[ratio], ["ms"], [changed]]

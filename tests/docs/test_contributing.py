"""``CONTRIBUTING.md``: its patches apply, touch as many files as it says, and the tests in them pass."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SAMPLES = "tests/lightning_trainer/samples"
OF_EVERY_SCHEME = [
    f"{SAMPLES}/{name}.py" for name in ("test_batches", "test_batches_gaps", "credit/test_documentation")
]
"""Tests of what schemes have in common, which the recipe does not change."""
_CONCERNED = "last_call or toyteam or test_batches or test_documentation"
"""Of the slow comparison of all formulas, only that of the scheme which is added."""
COPIED = ("lightning_trainer", "instrumentation", "adapters", "tests", "docs", "pyproject.toml", "README.md")


def test_what_it_names_is_there() -> None:
    prose = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    named = re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", prose)
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).exists()] == []
    for word in re.findall(r"^make ([\w-]+)", PAGE, flags=re.MULTILINE):
        assert f"\n{word}:" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize(("heading", "row"), [("A credit scheme", "a credit scheme"), ("A framework", "a framework")])
def test_a_newcomer_adds_one(heading, row, tmp_path) -> None:
    section = PAGE[PAGE.index(f"### {heading}") :]
    patch = section.split("```diff\n")[1].split("```")[0]
    files = re.findall(r"^\+\+\+ b/(.+)$", patch, flags=re.MULTILINE)
    said = re.search(rf"^\| {row} \| (\d+) files", PAGE, flags=re.MULTILINE)
    assert said is not None
    assert len(files) == int(said[1])
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name)  # with bytecode, which stays valid: times are copied too
        else:
            shutil.copy(source, tmp_path / name)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("GIT_", "PYTEST_"))}
    applied = subprocess.run(
        ["git", "apply", "-"], input=patch, cwd=tmp_path, capture_output=True, text=True, env=environment
    )
    stale = f"lines next to those of the patch below '{heading}' have changed; CONTRIBUTING.md says how to mend it"
    assert applied.returncode == 0, f"{stale}\n{applied.stderr}"
    tests = [file for file in files if file.startswith("tests/")]
    if heading == "A credit scheme":
        tests += OF_EVERY_SCHEME
    paths = [str(tmp_path / name) for name in (".", "instrumentation", "adapters")]
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            *tests,
            "-m",
            "not slow",
            "-k",
            _CONCERNED,
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment | {"PYTHONPATH": os.pathsep.join(paths)},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr

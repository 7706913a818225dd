"""The environments of ``make frameworks``: made once, and on a bare machine a sentence in place of Node's packages."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

FILES = ("install.py", "install_plan.py", "frameworks.py", "frameworks-node.txt", "cpu-py311.txt")
LISTS = ("frameworks-py311.txt", "frameworks-older-py311.txt", "frameworks-beside-py311.txt")


@pytest.fixture
def checkout(root: Path, tmp_path: Path) -> Path:
    """The set-up's files in a folder with a space, with lists that need nothing."""
    folder = tmp_path / "a folder"
    (folder / "environment").mkdir(parents=True)
    for name in FILES:
        shutil.copy(root / "environment" / name, folder / "environment" / name)
    for name in LISTS:
        (folder / "environment" / name).write_text("# nothing\n")
    return folder


def run(folder: Path, *programs: tuple[str, str]) -> subprocess.CompletedProcess[str]:
    """Run it where there are these programs alone, each a shell script."""
    bin = folder / "bin"
    shutil.rmtree(bin, ignore_errors=True)
    bin.mkdir()
    for name, text in programs:
        (bin / name).write_text(f"#!/bin/sh\n{text}\n")
        (bin / name).chmod(0o755)
    command = [sys.executable, "environment/frameworks.py"]
    environment = {**os.environ, "PATH": str(bin)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)


@pytest.fixture
def made(checkout: Path) -> Path:
    """A checkout whose environments of Python are made already."""
    for name in LISTS:
        listed = checkout / "environment" / name
        folder = checkout / f".venv-{name.removesuffix('-py311.txt')}"
        folder.mkdir()
        found = hashlib.sha256(listed.read_bytes() + str(checkout.resolve()).encode()).hexdigest()
        (folder / "installed").write_text(found)
    return checkout


def test_without_npm_it_says_so_and_what_is_made_is_left_alone(made: Path) -> None:
    done = run(made)
    assert (done.returncode, done.stderr) == (0, "")
    (said,) = done.stdout.splitlines()
    assert "there is no node and npm on PATH: Node's rows and Claude Code's will say" in said


def test_an_environment_is_made_again_when_its_list_has_changed(made: Path) -> None:
    (made / "environment" / LISTS[1]).write_text("# changed\n")
    (made / ".venv" / "bin").mkdir(parents=True)
    (made / ".venv" / "bin" / "uv").symlink_to(shutil.which("uv") or Path(sys.prefix) / "bin" / "uv")
    assert "packages into .venv-frameworks-older" in run(made).stdout
    assert (made / ".venv-frameworks-older" / "bin" / "python").exists()
    assert "into" not in run(made).stdout


def test_npm_that_fails_leaves_nothing_behind_and_is_tried_again(made: Path) -> None:
    for _ in range(2):
        done = run(made, ("node", "exit 0"), ("npm", "echo ENOTFOUND registry >&2; exit 1"))
        assert done.returncode == 0, done.stderr
        assert "npm failed, so Node's rows and Claude Code's are left out" in done.stdout
        assert "ENOTFOUND" in done.stdout
        assert not (made / ".venv-frameworks-node").exists()
    done = run(made, ("node", "exit 0"), ("npm", "exit 0"))
    assert (made / ".venv-frameworks-node" / "installed").is_file(), done.stdout

"""The set-up as it is run: instant when nothing changed, one sentence where it cannot work."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

FILES = ("environment/install.py", "environment/install_plan.py", "environment/cpu-py311.txt", "pyproject.toml")
STAMP = "lightning-setup.json"


def run(folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-S", str(folder / "environment" / "install.py")]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environ}, cwd=folder.parent)


@pytest.fixture
def checkout(root, tmp_path) -> Path:
    """The set-up's files and nothing else, in a folder with a space, and in no git checkout."""
    folder = tmp_path / "a folder"
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, folder / name)
    return folder


@pytest.fixture
def finished(checkout, plan) -> Path:
    """An environment that looks installed: an interpreter, every package's metadata, a complete stamp."""
    site_packages = checkout / ".venv" / "lib" / "python3.11" / "site-packages"
    site_packages.mkdir(parents=True)
    for requirement in plan.parse_requirements((checkout / plan.REQUIREMENTS).read_text()):
        name, _, version = requirement.partition("==")
        (site_packages / f"{name.replace('-', '_')}-{version}.dist-info").mkdir()
    (checkout / ".venv" / "bin").mkdir()
    (checkout / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (checkout / ".venv" / "pyvenv.cfg").write_text("home = /usr/bin\nversion_info = 3.11.7\n")
    parts = (checkout / plan.REQUIREMENTS).read_bytes(), (checkout / "pyproject.toml").read_bytes()
    stamp = {"complete": True, "fingerprint": plan.fingerprint(*parts, "3.11.7"), "root": str(checkout.resolve())}
    (checkout / ".venv" / STAMP).write_text(json.dumps(stamp))
    return checkout


def test_it_does_nothing_and_at_once_when_nothing_changed(finished):
    before = sorted(path.stat().st_mtime_ns for path in finished.rglob("*"))
    started = time.monotonic()
    done = run(finished, PYTHONDONTWRITEBYTECODE="1")  # the interpreter's own, wherever it may write it
    assert time.monotonic() - started < 2
    assert (done.returncode, done.stderr) == (0, "")
    assert "up to date" in done.stdout
    assert sorted(path.stat().st_mtime_ns for path in finished.rglob("*")) == before


def test_a_failing_command_is_shown_with_what_to_do_and_leaves_a_mark(finished, tmp_path, plan):
    """A uv that cannot reach anything stands in for a dead network."""
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text(
        '#!/bin/sh\ncase "$*" in --version) echo uv 9;; '
        '*) echo "error: dns error: failed to lookup address" >&2; exit 2;; esac\n'
    )
    uv.chmod(0o755)
    (finished / "pyproject.toml").write_text("# changed\n")
    shutil.rmtree(next(finished.glob(".venv/lib/python3.11/site-packages/torch-*")))
    path = f"{uv.parent}:{os.environ['PATH']}"
    done = run(finished, PATH=path, LIGHTNING_TORCH_INDEX="https://me:secret@mirror.example/cpu")
    assert done.returncode == 1
    assert "update .venv: the list or pyproject.toml changed" in done.stdout
    assert "dns error" in done.stderr
    assert "check the network" in done.stderr
    assert "LIGHTNING_TORCH_INDEX" in done.stderr
    assert "--no-deps torch==" in done.stderr
    assert "secret" not in done.stderr
    assert "Traceback" not in done.stderr
    # The next run knows that this one did not get to its end; what is there is kept until it can be mended.
    again = run(finished, PATH=path)
    assert "repair .venv: its set-up was interrupted" in again.stdout
    assert "--reinstall" in again.stderr
    assert next(finished.glob(".venv/lib/python3.11/site-packages/verl-*")).is_dir()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1, "progress": "complete"}'])
def test_a_torn_or_foreign_stamp_is_none(set_up, tmp_path, monkeypatch, text):
    monkeypatch.setattr(set_up, "STAMP", tmp_path / STAMP)
    (tmp_path / STAMP).write_text(text)
    assert set_up.look()[1] == "it was not made by this set-up"


def test_an_environment_of_another_python_is_left_alone(finished):
    (finished / ".venv" / STAMP).unlink()
    (finished / ".venv" / "pyvenv.cfg").write_text("version = 3.12.1\n")
    done = run(finished)
    assert done.returncode == 1
    assert "Move it away" in done.stderr
    assert (finished / ".venv" / "bin" / "python").exists()


def test_an_editable_install_finds_our_packages_and_no_other_folder_of_the_repository(root, tmp_path):
    """Of an import of ``docs`` or ``benchmarks``, elsewhere than here, nothing of ours must be the answer."""
    folders = {path.name for path in root.iterdir() if path.is_dir() and path.name.isidentifier()}
    names = sorted(folders | {"lightning_trainer", "lightning_instrumentation", "lightning_adapters"})
    assert {"docs", "tests", "benchmarks", "examples"} < set(names)
    program = f"""
from importlib.util import find_spec
for name in {names}:
    spec = find_spec(name)
    for place in spec.submodule_search_locations if spec else ():
        print(name, place)
"""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=environ).stdout
    ours = {
        line.partition(" ")[0]
        for line in found.splitlines()
        if Path(sys.prefix) not in Path(line.partition(" ")[2]).parents
    }
    assert ours == {"lightning_trainer", "lightning_instrumentation", "lightning_adapters"}

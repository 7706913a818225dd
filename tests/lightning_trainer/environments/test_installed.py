"""Where environments are installed and what limits they have: the same from Python as on the command line."""

import hashlib
import os
import shutil
import sys
from pathlib import Path

import lightning_instrumentation as lt
import pytest
from typer.testing import CliRunner

from lightning_trainer.cli.app import app
from lightning_trainer.cli.environments import installed
from lightning_trainer.environments.errors import EnvironmentRaisedError, UnknownEnvironmentError
from lightning_trainer.environments.limits import Limits
from lightning_trainer.environments.registry import EnvironmentSpec
from lightning_trainer.errors import ConfigError, LightningError
from lightning_trainer.rollouts import Runner

WORLDS = Path(__file__).with_name("worlds.py")
OPTIONS = {
    "policy": "p",
    "agent": lambda session: [session.say(text) for text in "12"],
    "endpoint": "http://127.0.0.1:9",
}


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "lightning.toml").write_text('[environments]\nfolder = "envs"\nstep_timeout_s = 0.25\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_python_looks_for_interpreters_where_the_command_line_installs_them(configured: Path) -> None:
    with pytest.raises(
        UnknownEnvironmentError, match=rf"not at {configured}/envs/gymnasium; .* --folder {configured}/envs"
    ):
        Runner.from_environment("frozenlake", **OPTIONS)
    with pytest.raises(UnknownEnvironmentError, match=r"not at /elsewhere/gymnasium"):
        Runner.from_environment("frozenlake", folder=Path("/elsewhere"), **OPTIONS)


def test_rollouts_looks_in_the_folder_that_it_is_told(configured: Path, monkeypatch) -> None:
    status = {"groups_per_step": 2, "group_size": 4, "steps_done": 0}
    monkeypatch.setattr("lightning_trainer.rollouts.daemon_client.DaemonClient.policy", lambda _: status)
    asked = [
        "rollouts",
        "--environment",
        "frozenlake",
        "--policy",
        "p",
        "--steps",
        "1",
        "--endpoint",
        OPTIONS["endpoint"],
    ]
    for more, folder in (([], configured / "envs"), (["--folder", "/elsewhere"], Path("/elsewhere"))):
        done = CliRunner().invoke(app, [*asked, *more], env={"COLUMNS": "400"})
        assert done.exit_code == 2, done.output
        assert f"not at {folder}/gymnasium; run: lightning-trainer environments install frozenlake" in done.stderr
        assert f"--folder {folder}, or say where it is with --folder, or in [environments] folder" in done.stderr


@pytest.mark.process
def test_the_limits_of_the_configuration_hold_from_python_unless_others_are_given(
    configured: Path, monkeypatch
) -> None:
    monkeypatch.setattr("lightning_trainer.rollouts.daemon_client.DaemonClient.wait_until_there", lambda _: None)
    lt.shutdown(0)
    lt.init(OPTIONS["endpoint"], spool_dir=configured)
    said: list[str] = []
    for limits in ({}, {"limits": Limits(step_timeout_s=0.5)}):
        with Runner.from_environment(f"{WORLDS}:Broken:hangs", **limits, **OPTIONS) as runner:
            (ended,) = runner.evaluate_held_out(1)
        said.append(ended.error or "")
    lt.shutdown(0)
    assert ["within 0.25 s" in said[0], "within 0.5 s" in said[1]] == [True, True], said


def test_only_an_environment_with_a_name_needs_the_configuration(configured: Path) -> None:
    class World:
        def reset(self, task) -> str:
            return ""

        def step(self, action) -> tuple[str, float, bool]:
            return "", 1.0, True

    (configured / "lightning.toml").write_text("[environments]\nstep_timeout = 1\n")
    Runner.from_environment(World, **OPTIONS)
    with pytest.raises(ConfigError, match=r"unknown key .environments\.step_timeout."):
        Runner.from_environment(f"{WORLDS}:Guess", **OPTIONS)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The interpreters from which environments were made, without pip, which would load packages."""
    pythons: list[str] = []
    works = Path(sys.executable).resolve(), Path("/bin/sh").resolve()

    def run(command: list[str], name: str) -> None:
        if command[1:3] == ["-m", "venv"]:
            (Path(command[3]) / "bin").mkdir(parents=True)
            (Path(command[3]) / "bin" / "python").symlink_to(shutil.which(command[0]) or command[0])
            pythons.append(command[0])
        elif "--version" in command and Path(command[0]).resolve() not in works:
            raise LightningError("it does not start, or has no packages")
        elif "broken-package" in command:
            raise LightningError("no such package")

    monkeypatch.setattr(installed, "_run", run)
    return pythons


def test_an_interpreter_that_broke_is_made_anew_and_one_that_works_is_kept(made: list[str], tmp_path: Path) -> None:
    interpreter = installed.install("frozenlake", tmp_path) / "bin" / "python"
    installed.install("frozenlake", tmp_path, extra=("numpy",))
    assert made == [sys.executable]
    interpreter.unlink()
    interpreter.symlink_to("/usr/bin/python-of-last-year")
    installed.install("frozenlake", tmp_path)
    assert made == [sys.executable] * 2
    assert interpreter.exists()
    interpreter.unlink()
    interpreter.symlink_to("/usr/bin/false")  # it is there, and has lost its packages
    installed.install("frozenlake", tmp_path)
    assert made == [sys.executable] * 3
    assert [path.name for path in tmp_path.iterdir()] == ["gymnasium"]


def test_another_python_that_is_named_takes_the_place_of_the_one_that_is_there(made: list[str], tmp_path: Path) -> None:
    home = installed.install("frozenlake", tmp_path)
    (home / "first").touch()
    with pytest.raises(LightningError, match="no such package"):
        installed.install("frozenlake", tmp_path, python="/bin/sh", extra=("broken-package",))
    assert (home / "first").exists(), "what works stays until the other is complete"
    installed.install("frozenlake", tmp_path, python=sys.executable)
    assert (home / "first").exists(), "it is made from that one"
    installed.install("frozenlake", tmp_path, python="sh")
    assert not (home / "first").exists()
    assert made == [sys.executable, "/bin/sh", "sh"]
    assert [path.name for path in tmp_path.iterdir()] == ["gymnasium"]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of two modules that a colleague has installed."""
    for name, text in {
        "acme_envs/__init__.py": "",
        "acme_envs/rules.py": "ALLOWED = 6\n",
        "acme_envs/guess.py": f"from .rules import ALLOWED\n{WORLDS.read_text()}",
        "acme_envs-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: acme-envs\nVersion: 1.0\n",
        "acme_envs-1.0.dist-info/entry_points.txt": "[lightning_trainer.environments]\nguess = acme_envs.guess:Guess\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path / "acme_envs" / "guess.py"


@pytest.mark.parametrize("name", ["acme_envs.guess:Guess", "guess"])
def test_an_installed_environment_has_the_same_tasks_wherever_it_is_played(
    name: str, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    for folder in ("here", "there", "changed"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        if folder == "changed":
            package.write_text(f"{package.read_text()}# changed\n")
        done = CliRunner().invoke(app, ["environments", "try", name, "--seed", "7", "--say", "10"])
        assert done.exit_code == 0, done.output
        assert "Guess my number between 1 and 20." in done.output
        said.append(done.output.split()[1])
    digest = hashlib.sha256(package.read_bytes().removesuffix(b"# changed\n")).hexdigest()[:8]
    assert said[:2] == [f"{name}@{digest}#train-7"] * 2
    assert said[2] != said[0]


def test_an_installed_environment_is_listed_and_takes_variants_and_options(package: Path) -> None:
    assert "acme_envs.guess:Guess" in CliRunner().invoke(app, ["environments", "list"]).output
    parsed = EnvironmentSpec.parse("acme_envs.guess:Closes:x?how=well")
    assert (parsed.name, parsed.attribute, parsed.variant) == ("acme_envs.guess", "Closes", "x")
    with pytest.raises(EnvironmentRaisedError, match=r"No module named 'acme_envs\.nothing'"):
        Runner.from_environment("acme_envs.nothing:Guess", **OPTIONS)
    with pytest.raises(
        UnknownEnvironmentError, match=r"there are code, .*, guess, .*file\.py:Class or package\.module:Class"
    ):
        Runner.from_environment("nothing", **OPTIONS)

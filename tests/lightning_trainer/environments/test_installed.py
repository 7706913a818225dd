"""Where environments are installed and what limits they have: the same from Python as on the command line."""

from pathlib import Path

import lightning_instrumentation as lt
import pytest

from lightning_trainer.environments.errors import UnknownEnvironmentError
from lightning_trainer.environments.limits import Limits
from lightning_trainer.errors import ConfigError
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

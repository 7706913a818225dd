"""What the README tells people to type and to write works as it stands."""

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_trainer.config.file import load_config
from lightning_trainer.rollouts import Runner

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of one language, without their list indentation."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", README, flags=re.MULTILINE | re.DOTALL)
    return [inspect.cleandoc(text) if indent else text for indent, text in found]


def commands() -> list[str]:
    return [line for block in blocks("bash") for line in block.splitlines() if line.strip()]


def test_every_command_in_the_readme_is_known_here():
    """A command that is new in the README has to be added to a test before it may stand there."""
    known = (
        "make quickstart",
        "make test",
        "lightning-trainer run --agent support -- python agent.py",  # tests/docs runs it
        "lightning-trainer doctor --config lightning.toml",
        "lightning-trainer serve --config lightning.toml",  # tests/loop runs it
        'pip install "lightning-trainer[daemon]"',
        "lightning-trainer serve",  # tests/loop/test_capture_first.py runs it
        "export LIGHTNING_ENDPOINT=http://127.0.0.1:8321",
        "export OPENAI_BASE_URL=http://127.0.0.1:8321/v1",
        "export OPENAI_API_KEY=$(lightning-trainer token)",  # tests/lightning_trainer/daemon/access runs it
    )
    assert set(commands()) <= set(known)


@pytest.mark.parametrize("target", ["quickstart", "test", "check", "bench", "setup", "help"])
def test_every_make_target_exists(target):
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.process
def test_the_configuration_is_accepted_and_the_doctor_reads_it(tmp_path):
    (text,) = blocks("toml")
    config = tmp_path / "lightning.toml"
    config.write_text(text)

    assert load_config(config).only_policy.claims("helper_7")
    done = subprocess.run(
        [sys.executable, "-m", "lightning_trainer", "doctor", "--config", str(config)],
        capture_output=True,
        text=True,
        env=os.environ | {"LIGHTNING_SPOOL_DIR": str(tmp_path / "spool")},
    )
    assert done.returncode in (0, 1), done.stderr  # 1: this machine lacks something, and it said what
    assert "model" in done.stdout


@pytest.mark.process
def test_the_two_lines_and_the_rollout_run_without_a_daemon(tmp_path):
    two_lines, rollout, _ = blocks("python")
    program = (
        f"{two_lines}\nwrapped, answer = answer, lambda question: '4711'\n{rollout}\nassert wrapped('?') is None\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=os.environ | {"LIGHTNING_SPOOL_DIR": str(tmp_path), "LIGHTNING_ENDPOINT": "http://127.0.0.1:9"},
    )
    assert done.returncode == 0, done.stderr


def test_the_runner_is_called_as_it_can_be():
    tree = ast.parse(blocks("python")[2])
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for call in calls:
        keywords = {keyword.arg: None for keyword in call.keywords if keyword.arg}
        match call.func:
            case ast.Name(id="Runner"):
                inspect.signature(Runner).bind(*call.args, **keywords)
            case ast.Attribute(attr="train"):
                inspect.signature(Runner.train).bind(None, *call.args, **keywords)


def test_files_that_the_readme_names_are_there():
    for name in re.findall(
        r"`((?:lightning_trainer|instrumentation|adapters|examples|environment)/[\w./-]*)`", README
    ) + re.findall(r"\]\((docs/[\w./-]*)\)", README):
        assert (ROOT / name).exists(), name

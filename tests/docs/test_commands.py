"""What the documents of this folder tell people to type and to write works as it stands."""

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from lightning_trainer.config import Config, DaemonConfig

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
ZERO_CODE = (ROOT / "docs" / "zero-code.md").read_text(encoding="utf-8")
CAPTURE = (ROOT / "docs" / "capture.md").read_text(encoding="utf-8")
DELIVERY = (ROOT / "docs" / "delivery.md").read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def environment(tmp_path: Path) -> dict[str, str]:
    scripts = sysconfig.get_path("scripts")
    return {
        **os.environ,
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "LIGHTNING_ENDPOINT": "http://127.0.0.1:9",
        "LIGHTNING_SPOOL_DIR": str(tmp_path / "spool"),
    }


RUNS = [line for block in blocks(ZERO_CODE, "bash") for line in block.splitlines() if not line.startswith("curl")]


@pytest.mark.parametrize("command", RUNS)
def test_every_command_of_zero_code_runs(command, tmp_path):
    (tmp_path / "agent.py").write_text("import openai, sys\nprint('ran', sys.argv[1:])\n")
    (tmp_path / "test_agent.py").write_text("def test_agent(): pass\n")
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "ran" in done.stdout or "1 passed" in done.stdout


def test_the_example_of_redaction_starts(tmp_path):
    (program,) = blocks(DELIVERY, "python")
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(tmp_path), capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_daemons_rules_are_accepted():
    (section,) = blocks(DELIVERY, "toml")
    assert DaemonConfig.model_validate(tomllib.loads(section)["daemon"]).redact


def test_the_trusted_engine_is_accepted():
    (text,) = blocks(CAPTURE, "toml")
    (policy,) = Config.model_validate(tomllib.loads(text)).policy
    assert policy.train_recorded
    assert policy.takes_unknown_versions

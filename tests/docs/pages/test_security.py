"""docs/security.md: every defence names tests that there are, and the settings it shows can be written."""

import re
import tomllib
from pathlib import Path

from lightning_trainer.config import Config

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


def test_every_threat_names_tests_that_there_are():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| threat |")]
    assert len(rows) > 12
    for row in rows:
        named = re.findall(r"`([^`]+)`", row.rpartition(" | ")[2])
        assert named, row
        for place in named:
            assert place.startswith("tests/"), place
            assert (ROOT / place).exists(), place


def test_the_settings_can_be_written():
    shown = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert len(shown) >= 2
    for text in shown:
        Config.model_validate(tomllib.loads(text))

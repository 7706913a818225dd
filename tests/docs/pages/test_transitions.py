"""docs/transitions.md names every choice that there is, and its example can be read."""

import re
from pathlib import Path
from typing import get_args

import pytest

from lightning_trainer.config import PolicyConfig
from lightning_trainer.config.file import load_config

PAGE = (Path(__file__).parents[3] / "docs" / "transitions.md").read_text(encoding="utf-8")


def test_the_example_can_be_read(tmp_path):
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    (tmp_path / "lightning.toml").write_text(example)
    policy = load_config(tmp_path / "lightning.toml").only_policy
    assert (policy.samples, policy.over_length, policy.non_text) == ("merged", "drop", "drop")


@pytest.mark.parametrize("setting", ["samples", "over_length"])
def test_every_choice_has_a_row(setting):
    choices = get_args(PolicyConfig.model_fields[setting].annotation)
    assert len(choices) > 1
    assert [choice for choice in choices if f"| `{choice}` |" not in PAGE] == []


@pytest.mark.parametrize("setting", ["samples", "over_length", "failed_attempts", "non_text"])
def test_the_example_names_every_choice(setting):
    (line,) = re.findall(rf"^{setting} = .*$", PAGE, flags=re.MULTILINE)
    choices = get_args(PolicyConfig.model_fields[setting].annotation)
    assert [choice for choice in choices if f'"{choice}"' not in line] == []

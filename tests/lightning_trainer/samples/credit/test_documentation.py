"""docs/credit.md names every scheme, setting and estimator that there is, and its example can be read."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from lightning_instrumentation.scope import current

from lightning_trainer.config.file import load_config
from lightning_trainer.config.policies.credit import CREDIT_SETTINGS
from lightning_trainer.config.policies.estimators import ESTIMATORS

DOCS = Path(__file__).parents[4] / "docs"
TEXT = (DOCS / "credit.md").read_text(encoding="utf-8")
TRAINING = (DOCS / "training.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CREDIT_SETTINGS)
def test_every_scheme_has_a_row_with_its_settings(name):
    rows = [line for line in TEXT.splitlines() if line.startswith(f"| `{name}` |")]
    assert len(rows) == 1, f"the table below Schemes in docs/credit.md has {len(rows)} rows of {name!r}; it needs one"
    settings = set(CREDIT_SETTINGS[name].model_fields) - {"scheme"}
    assert set(re.findall(r"`(\w+)`", rows[0].split("|")[3])) == settings, "the third column names the settings"


def test_the_schemes_that_compare_only_the_same_agents_are_named():
    (sentence,) = re.findall(r"depending on who else took part: with (.+?) credit", " ".join(TEXT.split()))
    one_team = {name for name, settings in CREDIT_SETTINGS.items() if settings.one_team}
    assert set(re.findall(r"`(\w+)`", sentence)) == one_team


def test_the_schemes_whose_credits_are_advantages_are_named():
    advantages = {name for name, one in CREDIT_SETTINGS.items() if one.gives_advantages and not one.needs_values}
    (row,) = (line for line in TEXT.splitlines() if line.startswith("| `credit` |"))
    (refused,) = re.findall(r"credit scheme that gives advantages \((.+?)\)", " ".join(TRAINING.split()))
    for where, named in (("the row `credit` in docs/credit.md", row), ("What is refused in docs/training.md", refused)):
        assert set(re.findall(r"`(\w+)`", named)) - {"credit"} == advantages, where


def test_every_estimator_is_named():
    assert [name for name in ESTIMATORS if f"`{name}`" not in TEXT and not name.endswith("_vectorized")] == []


def test_the_state_of_the_example_is_named_around_the_call():
    seen = []
    create = SimpleNamespace(create=lambda **asked: seen.append((current().state, asked["model"])))
    client = SimpleNamespace(chat=SimpleNamespace(completions=create))
    _, example = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    exec(example, {"client": client, "room": "hall", "inventory": {"lamp", "key"}, "messages": []})
    assert seen == [("hall ['key', 'lamp']", "m")]


def test_the_example_can_be_read(tmp_path):
    example, _ = re.findall(r"```toml\n(.*?)```", TEXT, flags=re.DOTALL)
    (tmp_path / "lightning.toml").write_text(example)
    policy = load_config(tmp_path / "lightning.toml").only_policy
    assert policy.credit.scheme == "hierarchical"

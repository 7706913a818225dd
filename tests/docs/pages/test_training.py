"""docs/training.md: its examples can be read, and its tables name every preset, loss and setting that there is."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_trainer.config.algorithms.algorithm import AlgorithmConfig
from lightning_trainer.config.algorithms.losses import POLICY_LOSSES
from lightning_trainer.config.algorithms.presets import PRESETS
from lightning_trainer.config.algorithms.thresholds import REJECTIONS
from lightning_trainer.config.file import load_config

PAGE = (Path(__file__).parents[3] / "docs" / "training.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```toml\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
A_POLICY = '[[policy]]\nname = "p"\nagents = ["*"]\nmodel = "random:tiny"\n'


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_can_be_read(example, tmp_path):
    whole = "[[policy]]" in example
    (tmp_path / "lightning.toml").write_text(example if whole else f"{example}\n{A_POLICY}")
    for name in re.findall(r'^data = "(.+?)"', example, flags=re.MULTILINE):
        (tmp_path / name).touch()
    (policy, *_) = load_config(tmp_path / "lightning.toml").policy
    assert policy.at_step(1).algorithm != AlgorithmConfig() or not whole


def test_the_team_is_claimed_as_the_page_says(tmp_path):
    (example,) = (example for example in EXAMPLES if "judge" in example)
    (tmp_path / "lightning.toml").write_text(example)
    policies = load_config(tmp_path / "lightning.toml").policy
    claimed = {agent: [p.name for p in policies if p.claims(agent)] for agent in ("planner", "worker_1", "fixer", "x")}
    assert claimed == {"planner": ["planner"], "worker_1": ["worker"], "fixer": ["worker"], "x": ["judge"]}
    assert not policies[2].train


@pytest.mark.parametrize("name", [*PRESETS, *POLICY_LOSSES])
def test_every_preset_and_loss_has_a_row(name):
    assert re.search(rf"^\|[^|]*`{name}`", PAGE, flags=re.MULTILINE)


def test_the_table_of_presets_has_their_updates():
    for name, settings in PRESETS.items():
        (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |") and line.count("|") == 6)
        algorithm = AlgorithmConfig.model_validate({"preset": name})
        assert int(row.split("|")[3]) == algorithm.mini_batches * algorithm.ppo_epochs, settings


def test_every_setting_is_named():
    named = set(re.findall(r"`(\w+)`", PAGE)) | set(re.findall(r"^(\w+) = ", "\n".join(EXAMPLES), flags=re.MULTILINE))
    assert set(AlgorithmConfig.model_fields) - named == set()


def test_every_loss_names_the_settings_of_its_own():
    clip = {"clip_ratio_low", "clip_ratio_high", "rollout_is", "rollout_rs"}
    for name, loss in POLICY_LOSSES.items():
        (row,) = (line for line in PAGE.splitlines() if re.match(rf"\|[^|]*`{name}`[^|]*\|[^|]*\|[^|]*\|$", line))
        assert set(loss.reads) - clip <= set(re.findall(r"`(\w+)", row)), name


def test_the_rejections_are_named():
    page = PAGE.replace("`seq_sum_*`", "`seq_sum_k1` `seq_sum_k2` `seq_sum_k3`")
    page = page.replace("`seq_mean_*`", "`seq_mean_k1` `seq_mean_k2` `seq_mean_k3`")
    assert [name for name in REJECTIONS if f"`{name}`" not in page] == []


_USE_THEM = """
import torch
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from lightning_trainer.config.algorithms.algorithm import AlgorithmConfig
from lightning_trainer.training.settings import TrainerSettings
from lightning_trainer.training.update.configuration import loss_config
from lightning_trainer.training.update.estimation.advantages import require_estimator

require_estimator("my_estimator")
algorithm = AlgorithmConfig(policy_loss="my_loss", advantage="my_estimator")
config = loss_config(TrainerSettings(policy="p", model_dir=None, algorithm=algorithm))
ones = torch.ones(2, 3)
loss, _ = get_policy_loss_fn(config.policy_loss.loss_mode)(
    old_log_prob=-ones, log_prob=-ones, advantages=2 * ones, response_mask=ones,
    loss_agg_mode=config.loss_agg_mode, config=config, rollout_is_weights=None,
)
print("loss", loss.item())
"""


@pytest.mark.verl
def test_a_loss_and_an_estimator_of_ones_own_are_known_where_a_policy_is_trained(tmp_path):
    (module,) = re.findall(r"^```python\n(# my_algorithms\.py\n.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "my_algorithms.py").write_text(module)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    named = {**os.environ, "VERL_USE_EXTERNAL_MODULES": "my_algorithms", "PYTHONPATH": path}
    ran = subprocess.run([sys.executable, "-c", _USE_THEM], env=named, capture_output=True, text=True, check=False)
    assert ran.stdout.splitlines()[-1:] == ["loss -2.0"], ran.stderr

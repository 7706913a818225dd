import subprocess
import sys
from pathlib import Path

import pytest

from lightning_trainer.config import Config
from lightning_trainer.training import settings
from lightning_trainer.training.settings import trainer_settings


def _config(**sections) -> Config:
    policy = {"name": "math", "agents": ["solver"], "model": "random:tiny", **sections.pop("policy", {})}
    return Config.model_validate({"policy": [policy], **sections})


def test_the_configuration_arrives_whole():
    config = _config(
        engine={"dtype": "float32"},
        training={"attention": "stock", "dtype": "float32", "threads": 2, "seed": 5, "max_tokens_per_micro_batch": 64},
        policy={"algorithm": {"advantage": "rloo", "clip_ratio_high": 0.4}, "optimizer": {"lr": 3e-5}},
    )
    found = trainer_settings(config, config.only_policy, Path("model"), Path("logs"))
    assert (found.policy, found.model_dir, found.log_dir) == ("math", Path("model"), Path("logs"))
    told = found.training
    assert (told.attention, told.dtype, told.threads, told.seed) == ("stock", "float32", 2, 5)
    assert (found.advantage, found.algorithm.clip_ratio_high, found.optimizer.lr) == ("rloo", 0.4, 3e-5)
    assert (found.horizon, found.value_credit, found.needs_critic) == (
        config.only_policy.max_sample_tokens,
        None,
        False,
    )
    assert told.max_tokens_per_micro_batch == 64


def test_a_critic_is_there_where_an_estimator_or_a_scheme_needs_its_values():
    for policy in ({"algorithm": "ppo"}, {"credit": {"scheme": "gae_turns"}}):
        config = _config(policy=policy)
        assert trainer_settings(config, config.only_policy, Path("model"), Path("logs")).needs_critic


def test_the_probes_tolerance_follows_the_engines_precision():
    for dtype, tolerance in (("float32", (1e-3, 2e-4)), ("bfloat16", (1.0, 0.1))):
        config = _config(engine={"dtype": dtype})
        found = trainer_settings(config, config.only_policy, Path("model"), Path("logs"))
        assert (found.serving_dtype, found.probe_max_abs, found.probe_mean_abs) == (dtype, *tolerance)
    config = _config(engine={"probe_max_abs": 0.1})
    assert trainer_settings(config, config.only_policy, Path("model"), Path("logs")).probe_max_abs == 0.1


def test_without_threads_a_process_takes_its_share_of_the_cores_where_it_computes(monkeypatch):
    config = _config(training={"world_size": 2})
    found = trainer_settings(config, config.only_policy, Path("model"), Path("logs"))
    for cores, threads in ((64, 32), (1, 1)):  # on a node of a cluster, and on another
        monkeypatch.setattr(settings, "available_cores", lambda cores=cores: cores)
        assert found.threads_here == threads


@pytest.mark.process
def test_asking_for_a_trainer_imports_neither_torch_nor_verl():
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from lightning_trainer.training.remote import make_trainer\n"
        "from lightning_trainer.training.settings import TrainerSettings\n"
        "for backend in ('inprocess', 'ray'):\n"
        "    make_trainer(backend, TrainerSettings('p', Path('m')))\n"
        "    assert not {'torch', 'verl', 'transformers'} & set(sys.modules), sorted(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)

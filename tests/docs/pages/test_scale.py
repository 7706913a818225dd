"""docs/scale.md: its examples can be read and dealt out, and its tables name every setting of devices."""

import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

from lightning_trainer.cli.app import app
from lightning_trainer.config import EngineConfig, TrainingConfig
from lightning_trainer.config.file import load_config
from lightning_trainer.config.sections import RayConfig
from lightning_trainer.config.training import Strategy
from lightning_trainer.daemon.hardware.dealing import deal
from lightning_trainer.serving.host.arguments import vllm_arguments
from lightning_trainer.serving.host.settings import HostSettings

PAGE = (Path(__file__).parents[3] / "docs" / "scale.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```toml\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
A_POLICY = '[[policy]]\nname = "p"\nagents = ["*"]\nmodel = "random:tiny"\n'
ON_GPUS = ("gpus =", "gpus_per_process", "offload", "strategy =")


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_can_be_read_and_their_gpus_dealt_out(example, tmp_path):
    if any(name in example for name in ON_GPUS) and "device" not in example:
        example = example.replace("[training]\n", '[training]\ndevice = "cuda"\n')
    policy = "" if "[[policy]]" in example else A_POLICY
    (tmp_path / "lightning.toml").write_text(f"{example}\n{policy}")
    config = load_config(tmp_path / "lightning.toml")
    dealt = deal(config, [str(number) for number in range(8)])
    assert len(dealt.engines[0]) == config.engine.replicas
    assert not dealt.shares


@pytest.mark.torch
def test_vllm_reads_the_arguments_that_the_page_gives_it(tmp_path):
    (example,) = (one for one in EXAMPLES if "[engine.vllm]" in one)
    engine = EngineConfig.model_validate({"dtype": "float32", "vllm": tomllib.loads(example)["engine"]["vllm"]})
    (tmp_path / "config.json").write_text("{}")
    arguments = vllm_arguments(HostSettings(str(tmp_path), ("p",), "token", "/weights", "/scratch", engine))
    assert arguments.max_num_batched_tokens == 16384
    assert arguments.compilation_config.mode == 3


def test_every_setting_of_devices_is_named():
    named = set(re.findall(r"`(\w+)`", PAGE)) | set(re.findall(r"^(\w+) = ", "\n".join(EXAMPLES), flags=re.MULTILINE))
    of_gpus = {"device", "gpus", "gpus_per_process", "strategy", "attention", "dtype", "gradient_checkpointing"}
    of_gpus |= {"param_offload", "optimizer_offload", "max_tokens_per_micro_batch", "tensor_parallel_size"}
    assert set(RayConfig.model_fields) - named == set()
    of_gpus |= {"gpu_memory_utilization", "quantization", "vllm", "sleep", "sleep_level"}
    of_gpus |= {"placement", "on_new_weights", "finish_timeout_s"}
    assert of_gpus <= set(TrainingConfig.model_fields) | set(EngineConfig.model_fields)
    assert of_gpus - named == set()


def test_every_strategy_is_named():
    assert all(f"`{strategy}`" in PAGE for strategy in get_args(Strategy))


def test_the_table_of_plans_is_what_the_command_prints():
    (command,) = re.findall(r"^<!-- lightning-trainer (plan .+) -->$", PAGE, flags=re.MULTILINE)
    printed = CliRunner().invoke(app, command.split()).output
    assert printed.count("\n") == 34
    assert printed in PAGE


def test_the_command_of_plan_is_answered():
    (command,) = re.findall(r"^lightning-trainer (plan .+)$", PAGE, flags=re.MULTILINE)
    done = CliRunner().invoke(app, command.split())
    assert done.exit_code == 0
    assert "8,030,261,248 parameters" in done.output

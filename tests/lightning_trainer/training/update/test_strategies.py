"""What verl would be given on each device; that it computes there is for ``-m gpu`` and a machine with one."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from lightning_trainer.config.policies.updates import LoraConfig
from lightning_trainer.errors import TrainingError

pytestmark = pytest.mark.verl


@pytest.fixture
def on_gpu(settings):
    def make(**changes):
        return settings(**{"device": "cuda", "dtype": "bfloat16", "gpus_per_process": 1.0, **changes})

    return make


@pytest.fixture(autouse=True)
def verl():
    pytest.importorskip("lightning_trainer.training.update")


def test_on_a_gpu_fsdp2_keeps_float32_weights_and_rounds_products(on_gpu):
    from lightning_trainer.training.update.configuration import worker_config

    asked = on_gpu(attention="tree", gradient_checkpointing=True, param_offload=True, optimizer_offload=True)
    config = worker_config(asked, asked.model_dir)
    engine, model = config.engine_config, config.model_config
    assert (engine.strategy, engine.dtype, engine.model_dtype) == ("fsdp2", "bfloat16", "fp32")
    assert engine.mixed_precision["param_dtype"] == "fp32"
    assert (engine.param_offload, engine.optimizer_offload) == (True, True)
    assert engine.max_token_len_per_gpu == asked.training.max_tokens_per_micro_batch
    assert model.enable_gradient_checkpointing
    assert not model.use_remove_padding
    assert not engine.reshard_after_forward
    of_two = replace(asked, training=asked.training.model_copy(update={"world_size": 2}))
    divided = worker_config(of_two, asked.model_dir).engine_config
    assert divided.reshard_after_forward
    assert divided.mixed_precision["param_dtype"] == "bf16"
    assert not divided.use_no_sync_for_gradient_accumulation


def test_verls_own_engine_takes_flash_attention_where_it_is_installed(on_gpu, monkeypatch):
    from lightning_trainer.training.update import configuration

    asked = on_gpu(attention="stock")
    for installed in (None, object()):
        monkeypatch.setattr(configuration, "find_spec", lambda name, found=installed: found)
        model = configuration.worker_config(asked, asked.model_dir).model_config
        assert model.use_remove_padding is bool(installed)
        assert model.override_config["attn_implementation"] == ("flash_attention_2" if installed else "sdpa")
    assert configuration.worker_config(asked, asked.model_dir).engine_config.mixed_precision["param_dtype"] == "bf16"


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize("strategy", ["fsdp", "fsdp2", "fsdp_turbo", "megatron", "torchtitan", "veomni", "automodel"])
def test_every_strategy_of_verls_registry_is_configured(on_gpu, strategy, schedule):
    from lightning_trainer.training.update.configuration import worker_config

    asked = on_gpu(attention="stock", strategy=strategy, schedule=schedule, total_steps=10, min_lr_ratio=0.1)
    config = worker_config(asked, asked.model_dir)
    assert (config.engine_config.strategy, config.engine_config.dtype) == (strategy, "bfloat16")
    assert (config.optimizer_config.lr, config.optimizer_config.betas) == (asked.optimizer.lr, asked.optimizer.betas)
    assert config.optimizer_config.total_training_steps == 10


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"attention": "tree"}, 'attention = "tree"'),
        ({"lora": LoraConfig(rank=2)}, "a LoRA adapter"),
        ({"dtype": "float32"}, 'dtype = "float32"'),
        ({"advantage": "gae"}, "a critic"),
    ],
)
def test_what_another_strategy_does_not_do_is_refused(on_gpu, changes, what):
    from lightning_trainer.training.update.engines.strategies import engine_config

    with pytest.raises(TrainingError, match=f'strategy = "megatron" does not train with {what} here'):
        engine_config(on_gpu(**{"strategy": "megatron", **changes}))


def test_on_a_gpu_ours_are_chosen_from_verls_registry_and_its_own_where_there_is_none_of_ours(monkeypatch):
    from verl.workers.engine import EngineRegistry

    from lightning_trainer.training.update import critic, host
    from lightning_trainer.training.update.engines.registration import STOCK, TREE, engines_of, require_strategy

    assert host
    assert critic
    monkeypatch.setenv("VERL_ENGINE_DEVICE", "cuda")
    monkeypatch.setenv("VERL_ENGINE_VENDOR", "of-the-user")

    def chosen(vendor: str, kind: str, strategy: str) -> str:
        with engines_of(vendor):
            return EngineRegistry.get_engine_cls(kind, strategy).__name__

    assert chosen(STOCK, "language_model", "fsdp2") == "StockEngine"
    assert chosen(TREE, "language_model", "fsdp2") == "TreeEngine"
    assert chosen(STOCK, "value_model", "fsdp2") == "ValueEngine"
    assert chosen(TREE, "value_model", "fsdp2") == "TreeValueEngine"
    assert chosen(STOCK, "language_model", "fsdp") == "FSDPEngineWithLMHead"
    assert os.environ["VERL_ENGINE_VENDOR"] == "of-the-user"
    require_strategy("fsdp", "language_model", "cuda")
    said = 'strategy = "{}": verl has no such engine for language models on "{}" here.*there is '
    with pytest.raises(TrainingError, match=said.format("megatron", "cuda") + "fsdp, fsdp2, fsdp_turbo"):
        require_strategy("megatron", "language_model", "cuda")
    with pytest.raises(TrainingError, match=said.format("fsdp", "cpu") + "fsdp2$"):
        require_strategy("fsdp", "language_model", "cpu")


CUDA = """
from lightning_trainer.errors import TrainingError
from lightning_trainer.training import device
device.choose("cuda", ["7"])
import os
from lightning_trainer.training.update import host
from verl.utils.device import get_device_name
print(get_device_name(), os.environ["CUDA_VISIBLE_DEVICES"])
for wrong in (lambda: device.choose("cpu"), device.require):
    try:
        wrong()
    except TrainingError as error:
        print(error)
"""


@pytest.mark.slow
def test_a_process_computes_on_one_device_and_says_where_torch_sees_none():
    done = subprocess.run([sys.executable, "-c", CUDA], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    device, other, absent = done.stdout.splitlines()[-3:]
    assert device == "cuda 7"
    assert other.startswith('a trainer of this process computes on "cuda" already and another is to compute on "cpu"')
    assert "sees no GPU (CUDA_VISIBLE_DEVICES = 7)" in absent


def test_packed_samples_are_computed_as_padded_ones(settings, samples_of_shape, monkeypatch):
    """As flash attention takes them; what else a token was sampled from is found in the packed row as well."""
    from lightning_trainer.sampling import Shaping
    from lightning_trainer.training.update import configuration
    from lightning_trainer.training.update.worker import UpdateWorker

    shaping = Shaping(frequency_penalty=0.5)
    samples = [
        replace(one, segments=tuple(replace(segment, shaping=shaping) for segment in one.segments))
        for one in samples_of_shape(3, "forks inside responses")
    ]
    padded = UpdateWorker(settings(attention="stock")).logprobs(samples)
    monkeypatch.setattr(configuration, "FLASH", "sdpa")
    packed = UpdateWorker(settings(attention="stock"))
    assert packed.engine.use_remove_padding
    for ours, theirs in zip(packed.logprobs(samples), padded, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)


@pytest.mark.gpu
def test_on_a_gpu_the_tree_gives_what_the_stock_engine_gives(settings, samples_of_shape):
    script = """
import pickle, sys
from lightning_trainer.training.in_process import build_trainers
from lightning_trainer.types import TrainingBatch
with open(sys.argv[1], "rb") as file:
    settings, samples = pickle.load(file)
trainer = build_trainers([settings]).open("tiny")
scored = trainer.score([[1, 2, 3, 4], [5, 6, 7]])
report = trainer.step(TrainingBatch(policy="tiny", step=1, samples=tuple(samples)))
with open(sys.argv[2], "wb") as file:
    pickle.dump((scored, report.metrics["grad_norm"]), file)
"""
    import pickle

    folder = settings().model_dir.parent
    found = {}
    for attention in ("tree", "stock"):
        asked = settings(device="cuda", dtype="bfloat16", attention=attention)
        given, taken = folder / f"{attention}.in", folder / f"{attention}.out"
        given.write_bytes(pickle.dumps((asked, samples_of_shape(1, "shared prefixes"))))
        subprocess.run([sys.executable, "-c", script, str(given), str(taken)], check=True, timeout=600)
        found[attention] = pickle.loads(taken.read_bytes())
    for ours, theirs in zip(*(found[attention][0] for attention in ("tree", "stock")), strict=True):
        assert ours == pytest.approx(theirs, abs=0.05)
    assert found["tree"][1] == pytest.approx(found["stock"][1], rel=0.05)

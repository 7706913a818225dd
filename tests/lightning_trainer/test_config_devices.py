"""Settings of devices: read for the machine that is there, refused where it cannot do them."""

import pytest
from pydantic import ValidationError

from lightning_trainer.config import Config, EngineConfig, TrainingConfig
from lightning_trainer.config import hardware as found_gpus
from lightning_trainer.config.hardware import comparable, visible_gpus


@pytest.fixture
def devices(tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("listed", "seen"),
    [(None, ("0", "1")), ("1", ("1",)), ("3, GPU-5f", ("3", "GPU-5f")), ("", ()), ("-1", ())],
)
def test_the_gpus_that_are_there_are_those_that_the_environment_leaves(monkeypatch, devices, listed, seen):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if listed is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert visible_gpus(devices) == seen
    assert visible_gpus(devices / "none") == ()


def test_nvidia_smi_tells_which_number_and_which_uuid_are_one_gpu(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert comparable(["0", "GPU-aa"]) == {"0": "0", "GPU-aa": "GPU-aa"}
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 0, GPU-aabb\necho 1, GPU-bbaa\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert comparable(["0", "GPU-aa"]) == {"0": "GPU-aabb", "GPU-aa": "GPU-aabb"}
    assert comparable(["7", "MIG-1", "GPU-"]) == {"7": "7", "MIG-1": "MIG-1", "GPU-": "GPU-"}
    assert comparable(["0", "1"]) == {"0": "0", "1": "1"}


@pytest.mark.parametrize(("build", "device"), [("2.11.0", "cuda"), ("2.11.0+cu128", "cuda"), ("2.11.0+cpu", "cpu")])
def test_auto_is_a_gpu_where_there_is_one_that_torch_computes_on(monkeypatch, build, device):
    monkeypatch.setattr(found_gpus, "visible_gpus", lambda: ("0",))
    monkeypatch.setattr(found_gpus.importlib.metadata, "version", lambda name: build)
    training = TrainingConfig.model_validate({"device": "auto"})
    assert training.device == device
    if device == "cuda":
        assert training.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"strategy": "megatron"}, 'strategy = "megatron" computes on GPUs alone and the device is "cpu" here'),
        ({"strategy": "deepspeed"}, "'fsdp', 'fsdp2', 'fsdp_turbo', 'megatron'"),
        ({"device": "cuda", "strategy": "megatron", "attention": "tree"}, "computed by fsdp2 alone, not by megatron"),
        ({"param_offload": True}, 'param_offload is about GPUs and the device is "cpu" here'),
        ({"gpus": [0]}, "gpus is about GPUs"),
        ({"device": "cuda", "gpus": ["zero"]}, "'zero' does not name a GPU"),
        ({"device": "rocm"}, "'cpu' or 'cuda'"),
    ],
)
def test_what_a_device_cannot_do_is_refused(settings, said):
    with pytest.raises(ValidationError, match=said):
        TrainingConfig.model_validate({"device": "cpu", **settings})


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ({}, 'say device = "cuda" or "cpu"'),
        ({"device": "auto"}, 'say device = "cuda" or "cpu"'),
        ({"device": "cuda", "gpus": [0]}, "gpus names GPUs of this machine, and Ray assigns those of the cluster"),
    ],
)
def test_what_a_cluster_has_is_not_taken_from_this_machine(training, said):
    with pytest.raises(ValidationError, match=said):
        Config.model_validate({"ray": {"address": "10.0.0.4:6379"}, "training": training})


@pytest.mark.parametrize("section", ["training", "engine"])
def test_a_gpu_that_is_named_twice_is_not_two(section):
    named = {"gpus": [0, "0"], "device": "cuda"} if section == "training" else {"gpus": [0, 0, 1]}
    with pytest.raises(ValidationError, match="gpus names 0 twice; leave one out"):
        Config.model_validate({section: named})


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"model": "x"}, "model is not set here: it is the policy's"),
        ({"logprobs-mode": "raw"}, "logprobs_mode is not set here"),
        ({"logits-processors": ["mine:Ban"]}, "logits_processors is not set here"),
        ({"default_chat_template_kwargs": {"enable_thinking": False}}, "write it into a template of your own"),
        ({"override-generation-config": {"temperature": 0.5}}, "sampling is what a request says"),
        ({"no_enable_lora": True}, r"no_enable_lora is not set here: \[policy.lora\] decides it"),
        ({"lora_modules": ["a=b"]}, "lora_modules is not set here"),
        ({"allowed_media_domains": ["example.com"]}, "allowed_media_domains is not set here"),
        ({"mm-processor-kwargs": {"size": {"longest_edge": 364}}}, "preprocessor_config.json of a model folder"),
        ({"media_io_kwargs": {"image": {"image_mode": "RGBA"}}}, "media_io_kwargs is not set here: the trainer reads"),
        ({"trust_request_mm_kwargs": True}, "trust_request_mm_kwargs is not set here"),
        (
            {"hf_overrides": {"rope_theta": 1e6}},
            "write it into the config.json of a model folder, which the trainer reads",
        ),
        ({"hf-config-path": "x"}, "hf_config_path is not set here"),
        ({"tokenizer": "x"}, "tokenizer is not set here: save it in a model folder"),
        ({"config": "more.yaml"}, "config is not set here: write its arguments in"),
        ({"max_model_len": 4096}, r"max_model_len is set in \[engine\] itself"),
        ({"a b": 1}, "cannot be an argument of vLLM"),
    ],
)
def test_an_argument_of_vllm_that_is_said_elsewhere_is_refused(table, said):
    with pytest.raises(ValidationError, match=said):
        EngineConfig(vllm=table)


def test_other_arguments_of_vllm_are_kept_under_one_name():
    assert EngineConfig(vllm={"max-num-batched-tokens": 8192, "enable_prefix_caching": False}).vllm == {
        "max_num_batched_tokens": 8192,
        "enable_prefix_caching": False,
    }


def test_weights_that_nothing_brings_again_are_not_thrown_away():
    policy = {"name": "p", "agents": ["*"], "model": "random:tiny", "lora": {}}
    with pytest.raises(ValidationError, match="sleep_level = 2 throws the weights away"):
        Config.model_validate({"engine": {"sleep_level": 2}, "policy": [policy]})


def test_fewer_gpus_than_a_replica_needs_are_refused():
    with pytest.raises(ValidationError, match="tensor_parallel_size = 2 needs as many GPUs and gpus names 1"):
        EngineConfig(tensor_parallel_size=2, gpus=("0",))

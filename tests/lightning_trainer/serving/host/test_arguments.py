"""``[engine]`` arrives at vLLM once and whole, and what vLLM does not know is refused by name."""

import argparse
from dataclasses import replace
from pathlib import Path

import pytest

from lightning_trainer.config import Config, EngineConfig
from lightning_trainer.errors import EngineError
from lightning_trainer.serving.host.arguments import further_arguments, on_gpus, vllm_arguments
from lightning_trainer.serving.host.settings import HostSettings

SETTINGS = HostSettings("/model", ("p",), "token", "/weights", "/scratch", EngineConfig())
GIF = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"


@pytest.fixture
def parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-num-batched-tokens", type=int)
    parser.add_argument("--enforce-eager", "--no-enforce-eager", action=argparse.BooleanOptionalAction)
    parser.add_argument("--disable-log-stats", action="store_true")
    parser.add_argument("--middleware", nargs="*")
    parser.add_argument("--compilation-config")
    return parser


def test_each_kind_of_value_becomes_what_vllm_reads(parser):
    table = {
        "max_num_batched_tokens": 8192,
        "enforce_eager": False,
        "disable_log_stats": True,
        "middleware": ["a", "b"],
        "compilation_config": {"mode": 3},
    }
    read = parser.parse_args(further_arguments(table, parser))
    assert vars(read) == {**table, "compilation_config": '{"mode": 3}'}
    assert further_arguments({"disable_log_stats": False}, parser) == []


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"max_num_batch_tokens": 1}, r"\[engine.vllm\] max_num_batch_tokens .* \(is it max_num_batched_tokens\?\)"),
        ({"zzz": 1}, r"\[engine.vllm\] zzz is not an argument of this vLLM; correct or remove it"),
        ({"enforce_eager": "yes"}, "enforce_eager = 'yes': it is on or off; write true or false"),
    ],
)
def test_what_vllm_does_not_know_is_refused_by_name(parser, table, said):
    with pytest.raises(EngineError, match=said):
        further_arguments(table, parser)


def test_the_settings_arrive_as_they_were_written():
    engine = EngineConfig(dtype="bfloat16", chat_template=Path("/t.jinja"), quantization="fp8", vllm={"seed": 3})
    sent = HostSettings("/model", ("p", "q"), "token", "/weights", "/scratch", engine, lora_rank=8, sleeps=True)
    read = HostSettings.from_line(sent.to_line())
    assert vars(read.engine) == engine.model_dump(mode="json")
    assert (read.policies, read.lora_rank, read.sleeps) == (("p", "q"), 8, True)
    with pytest.raises(EngineError, match="expects its settings"):
        HostSettings.from_line('{"model": 1}')


@pytest.mark.torch
def test_an_engine_fetches_no_address_unless_its_hosts_are_named(tmp_path):
    from vllm.multimodal.media.connector import MediaConnector

    (tmp_path / "config.json").write_text("{}")
    engine = EngineConfig(dtype="float32")
    settings = replace(SETTINGS, model=str(tmp_path), engine=engine)
    allowed = vllm_arguments(settings).allowed_media_domains
    connector = MediaConnector(allowed_media_domains=allowed)
    with pytest.raises(ValueError, match="allowed domains"):
        connector.fetch_image("http://127.0.0.1:9/cat.png")
    assert connector.fetch_image(f"data:image/gif;base64,{GIF}").size == (1, 1)
    own = engine.model_copy(update={"vllm": {"allowed_media_domains": ["pictures.example", "b"]}})
    assert vllm_arguments(replace(settings, engine=own)).allowed_media_domains == ["pictures.example", "b"]


@pytest.mark.torch
def test_a_policys_own_parsers_arrive(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    engine = {"reasoning_parser": "deepseek_r1", "dtype": "float32"}
    policy = {"name": "p", "agents": ["*"], "model": str(tmp_path), "engine": {"tool_call_parser": "hermes"}}
    thinks = {**policy, "name": "q", "agents": ["q"], "engine": {"reasoning_parser": "qwen3"}}
    config = Config.model_validate({"engine": engine, "policy": [thinks, policy]})
    read = [vllm_arguments(replace(SETTINGS, model=one.model, engine=config.engine_of(one))) for one in config.policy]
    assert [one.reasoning_parser for one in read] == ["qwen3", "deepseek_r1"]
    assert [one.tool_call_parser for one in read] == [None, "hermes"]


def test_an_engine_on_gpus_is_told_their_number_their_memory_and_that_it_may_sleep():
    assert on_gpus(SETTINGS) == ["--tensor-parallel-size", "1"]
    shared = HostSettings(
        "/model",
        ("p",),
        "token",
        "/weights",
        "/scratch",
        EngineConfig(tensor_parallel_size=2),
        gpu_memory_utilization=0.8,
        sleeps=True,
    )
    assert on_gpus(shared) == [
        *("--tensor-parallel-size", "2", "--gpu-memory-utilization", "0.8"),
        "--enable-sleep-mode",
    ]

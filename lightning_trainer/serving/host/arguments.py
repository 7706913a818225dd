"""The settings as vLLM's own arguments: those that ``vllm serve`` would be started with."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from lightning_trainer.errors import EngineError
from lightning_trainer.serving.adapter import reserved_rank
from lightning_trainer.serving.host.plugin import TRANSFER_BACKEND
from lightning_trainer.serving.host.settings import HostSettings
from lightning_trainer.serving.host.weights.weight_file import linear_layers


def vllm_arguments(settings: HostSettings) -> Namespace:
    """Return the parsed and validated arguments; values that vLLM refuses raise its own errors.

    Raises:
        EngineError: ``[engine.vllm]`` names an argument that this vLLM does not have.
    """
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.platforms import current_platform
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser())
    engine = settings.engine
    arguments = [
        *("--model", settings.model),
        *("--served-model-name", *settings.policies),
        *("--dtype", engine.dtype),
        *("--max-model-len", str(engine.max_model_len)),
        *("--max-num-seqs", str(engine.max_num_seqs)),
        *_weights(settings),
        # The request alone decides on sampling; a model's own defaults would change what a log-probability means.
        *("--generation-config", "vllm"),
        # Log-probabilities of the distribution that sampled: after temperature, top-p, and all else that was requested.
        *("--logprobs-mode", "processed_logprobs"),
        # No domain: images are trained as they were sent, and vLLM would fetch a caller's URL from inside this network.
        *("--allowed-media-domains", "none.invalid"),
        *(_on_cpu(settings) if current_platform.is_cpu() else on_gpus(settings)),
    ]
    if engine.quantization is not None:
        arguments += ["--quantization", engine.quantization]
    if engine.chat_template is not None:
        arguments += ["--chat-template", str(engine.chat_template)]
    if engine.tool_call_parser is not None:
        arguments += ["--enable-auto-tool-choice", "--tool-call-parser", engine.tool_call_parser]
    if engine.reasoning_parser is not None:
        arguments += ["--reasoning-parser", engine.reasoning_parser]
    arguments += further_arguments(engine.vllm, parser)
    parsed = Namespace(**vars(parser.parse_args(arguments)))
    validate_parsed_serve_args(parsed)
    return parsed


def _on_cpu(settings: HostSettings) -> list[str]:
    return [
        *("--kv-cache-memory-bytes", str(round(settings.engine.kv_cache_gib * 2**30)), "--enforce-eager"),
        # A single process computes: two would spin on the queue between them, which on two cores halves the speed.
        *("--distributed-executor-backend", "uni"),
        # The prefix cache matches prompts in whole blocks, and the default of 128 tokens is most of a short prompt.
        *("--block-size", "32"),
    ]


def on_gpus(settings: HostSettings) -> list[str]:
    """Return the additional arguments of an engine on GPUs."""
    arguments = ["--tensor-parallel-size", str(settings.engine.tensor_parallel_size)]
    if settings.gpu_memory_utilization is not None:
        arguments += ["--gpu-memory-utilization", str(settings.gpu_memory_utilization)]
    if settings.sleeps:
        arguments.append("--enable-sleep-mode")
    return arguments


def further_arguments(table: Mapping[str, Any], parser: ArgumentParser) -> list[str]:
    """Return ``[engine.vllm]`` as words of a command line; they come last, and so take precedence over our own.

    Raises:
        EngineError: the parser does not know a name, or a flag got a value.
    """
    known = parser._option_string_actions
    words: list[str] = []
    for name, value in table.items():
        option = f"--{name.replace('_', '-')}"
        if option not in known:
            near = get_close_matches(option, known, 1)
            meant = f" (is it {near[0][2:].replace('-', '_')}?)" if near else ""
            raise EngineError(f"[engine.vllm] {name} is not an argument of this vLLM{meant}; correct or remove it")
        off = f"--no-{option[2:]}"
        if known[option].nargs == 0:  # a flag, with or without an opposite
            if not isinstance(value, bool):
                raise EngineError(f"[engine.vllm] {name} = {value!r}: it is on or off; write true or false")
            words += [option] if value else [off] if off in known else []
        elif isinstance(value, dict):
            words += [option, json.dumps(value)]
        elif isinstance(value, list | tuple):
            words += [option, *map(str, value)]
        else:
            words += [option, str(value).lower() if isinstance(value, bool) else str(value)]
    return words


def _weights(settings: HostSettings) -> list[str]:
    """Return the arguments for loading publications: in place of the model's weights, or as adapters next to them."""
    if settings.lora_rank is None:
        return ["--weight-transfer-config", json.dumps({"backend": TRANSFER_BACKEND})]
    # For each policy: the live adapter; a second one, which is being proven, or was live before and still has requests;
    # and an old one.
    at_once = 3 * len(settings.policies)
    return [
        "--enable-lora",
        *("--max-lora-rank", str(reserved_rank(settings.lora_rank))),
        *("--max-loras", str(at_once)),
        *("--max-cpu-loras", str(2 * at_once)),
        # Not the output layer: our adapters do not change it, and vLLM's code for an adapter there fails on the many
        # rows of prompt log-probabilities (the probe's) as soon as another request runs.
        *("--lora-target-modules", *linear_layers(Path(settings.model))),
    ]

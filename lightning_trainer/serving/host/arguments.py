"""The settings in vLLM's own words: what ``vllm serve`` would be started with."""

import json
from argparse import Namespace
from pathlib import Path

from lightning_trainer.serving.host.plugin import TRANSFER_BACKEND
from lightning_trainer.serving.host.settings import HostSettings
from lightning_trainer.serving.host.weights.weight_file import linear_layers

_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Those that vLLM reserves room for."""


def vllm_arguments(settings: HostSettings) -> Namespace:
    """Return the parsed and validated arguments; values that vLLM refuses raise its own errors."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.platforms import current_platform
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    arguments = [
        *("--model", settings.model),
        *("--served-model-name", *settings.policies),
        *("--dtype", settings.dtype),
        *("--max-model-len", str(settings.max_model_len)),
        *("--max-num-seqs", str(settings.max_num_seqs)),
        *_weights(settings),
        # Sampling is what the request says; a model's own defaults would change what a log-probability means.
        *("--generation-config", "vllm"),
        # Of the distribution that sampled: after temperature, top-p and whatever else the request asked for.
        *("--logprobs-mode", "processed_logprobs"),
    ]
    if current_platform.is_cpu():
        arguments += ["--kv-cache-memory-bytes", str(settings.kv_cache_bytes), "--enforce-eager"]
        # One process computes: two of them spin on the queue between them, which on two cores halves the speed.
        arguments += ["--distributed-executor-backend", "uni"]
        # A prompt is found in the prefix cache by whole blocks, and the default of 128 tokens is most of a short one.
        arguments += ["--block-size", "32"]
    if settings.chat_template is not None:
        arguments += ["--chat-template", settings.chat_template]
    if settings.tool_call_parser is not None:
        arguments += ["--enable-auto-tool-choice", "--tool-call-parser", settings.tool_call_parser]
    parser = make_arg_parser(FlexibleArgumentParser())
    parsed = Namespace(**vars(parser.parse_args([*arguments, *settings.vllm_arguments])))
    validate_parsed_serve_args(parsed)
    return parsed


def _weights(settings: HostSettings) -> list[str]:
    """How publications come in: over the model's own weights, or as adapters beside them."""
    if settings.lora_rank is None:
        return ["--weight-transfer-config", json.dumps({"backend": TRANSFER_BACKEND})]
    # Of each policy the live one, the one before that runs out or the one that is proven, and an old one.
    at_once = 3 * len(settings.policies)
    rank = next(rank for rank in _RANKS if rank >= settings.lora_rank)
    return [
        "--enable-lora",
        *("--max-lora-rank", str(rank)),
        *("--max-loras", str(at_once)),
        *("--max-cpu-loras", str(2 * at_once)),
        # Not the output layer: adapters leave it alone, and vLLM's way of adding one to it fails on the many rows of
        # prompt log-probabilities (the probe's) as soon as another request runs.
        *("--lora-target-modules", *linear_layers(Path(settings.model))),
    ]

"""A model's config.json: a file, a folder, the local Hugging Face cache, or a download of that file alone."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_trainer.errors import ModelError
from lightning_trainer.models.resolve import cached_folder, found_model, hub_refusal, is_hub_id, model_cache
from lightning_trainer.plan.shape import Shape, read_shape, shape_of


def _llama(layers: int, hidden: int, heads: int, key_heads: int, forward: int, vocabulary: int) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "intermediate_size": forward,
        "vocab_size": vocabulary,
        "max_position_embeddings": 131072,
    }


_SMOLLM2 = {**_llama(30, 576, 9, 3, 1536, 49152), "tie_word_embeddings": True, "max_position_embeddings": 8192}
_QWEN3_4B = {
    **_llama(36, 2560, 32, 8, 9728, 151936),
    "model_type": "qwen3",
    "head_dim": 128,
    "tie_word_embeddings": True,
    "max_position_embeddings": 40960,
}
_SIZES: Mapping[str, Mapping[str, Any]] = {
    "embedded:smollm2-135m-instruct": _SMOLLM2,
    "HuggingFaceTB/SmolLM2-135M": _SMOLLM2,
    "HuggingFaceTB/SmolLM2-135M-Instruct": _SMOLLM2,
    "Qwen/Qwen3-4B": _QWEN3_4B,
    "meta-llama/Llama-3.1-8B": _llama(32, 4096, 32, 8, 14336, 128256),
    "meta-llama/Llama-3.1-8B-Instruct": _llama(32, 4096, 32, 8, 14336, 128256),
    "meta-llama/Llama-3.1-70B": _llama(80, 8192, 64, 8, 28672, 128256),
    "meta-llama/Llama-3.1-70B-Instruct": _llama(80, 8192, 64, 8, 28672, 128256),
}
"""Sizes of models that users plan for before they download them; some downloads need the owner's permission."""


def find_shape(spec: str) -> tuple[Shape, str]:
    """Return a model's sizes, and where they come from.

    Raises:
        ModelError: its config.json cannot be fetched or read; the message says what to do.
    """
    path = Path(os.path.expanduser(spec))
    if path.is_file():
        return read_shape(path), str(path)
    folder = found_model(spec, model_cache())
    if folder is not None:
        return read_shape(folder / "config.json"), str(folder / "config.json")
    if spec in _SIZES:
        return shape_of(_SIZES[spec], spec), "the sizes that come with lightning-trainer"
    return read_shape(_downloaded(spec)), f"the config.json of {spec}"


def name_of(spec: str) -> str:
    """Return the model's name for a configuration; a placeholder if ``spec`` is a config.json file."""
    return "OWNER/NAME" if os.path.isfile(os.path.expanduser(spec)) else spec


def _downloaded(spec: str) -> Path:
    if not is_hub_id(spec):
        raise ModelError(f"there is no config.json at {spec!r}, and it is not a Hugging Face id (owner/name)")
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it would log every retry
    try:
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(spec, "config.json"))
    except Exception as error:  # from the hub, its HTTP client, or its import: they all mean the same
        if (cached := cached_folder(spec)) is not None:
            return cached / "config.json"
        if not isinstance(error, ImportError) and (refusal := hub_refusal(spec, error)) is not None:
            raise refusal from error
        raise ModelError(
            f"the config.json of {spec} could not be fetched ({type(error).__name__}); without a network copy it here "
            "from the model's page and name the file: --model config.json"
        ) from error

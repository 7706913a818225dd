"""What the tree engine cannot compute: each of it is refused by name, and nothing is computed wrongly instead."""

from inspect import signature
from typing import Any, NoReturn

import torch

from lightning_trainer.errors import TrainingError


class TreeRefusedError(TrainingError):
    """A model or a setting that cannot be computed along a tree."""

    def __init__(self, what: str) -> None:
        super().__init__(what)  # alone: it is made from its arguments again where it arrives from another process
        self.what = what

    def __str__(self) -> str:
        return f'the tree engine does not support {self.what}; set attention = "stock" in [training]'


def refuse(what: str) -> NoReturn:
    raise TreeRefusedError(what)


def refuse_config(model_config: Any) -> None:
    """Refuse what the configuration of a model tells already.

    Args:
        model_config: verl's.

    Raises:
        TreeRefusedError: it asks for something that a tree cannot give.
    """
    config = model_config.hf_config
    for name in vars(config):
        value = getattr(config, name)
        if ("dropout" in name or name.endswith("pdrop")) and isinstance(value, int | float) and value > 0:
            refuse(f"dropout ({name} = {value})")
    if kinds := set(getattr(config, "layer_types", None) or ()) - {"full_attention"}:
        refuse(f"layers of type {', '.join(sorted(kinds))}")
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        refuse(f"sliding-window attention (sliding_window = {config.sliding_window})")
    if any(hasattr(config, name) for name in ("vision_config", "audio_config", "text_config")):
        refuse("multimodal models")
    if model_config.use_fused_kernels or model_config.use_liger:
        refuse("fused kernels")


def refuse_module(module: torch.nn.Module, *arguments: str) -> None:
    """Refuse a model whose forward does not take what the engine gives it.

    Raises:
        TreeRefusedError: it does not.
    """
    known = signature(module.forward).parameters
    if not getattr(module, "_supports_attention_backend", False) or any(name not in known for name in arguments):
        refuse(f"{type(module).__name__}, whose forward does not follow transformers' attention interface")

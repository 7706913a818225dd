"""What the tree engine cannot compute: it refuses each such thing by name instead of computing it wrongly."""

from inspect import signature
from typing import Any, NoReturn

import torch

from lightning_trainer.errors import TrainingError


class TreeRefusedError(TrainingError):
    """A model or a setting that cannot be computed along a tree."""

    def __init__(self, what: str) -> None:
        super().__init__(what)  # only this: an exception from another process is rebuilt from its arguments
        self.what = what

    def __str__(self) -> str:
        return f'the tree engine does not support {self.what}; set attention = "stock" in [training]'


def refuse(what: str) -> NoReturn:
    """Raise TreeRefusedError; ``what`` completes "the tree engine does not support"."""
    raise TreeRefusedError(what)


def refuse_config(model_config: Any) -> None:
    """Refuse a model whose configuration already shows that the tree engine cannot compute it.

    Args:
        model_config: verl's.

    Raises:
        TreeRefusedError: it cannot; the message names the reason.
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
    of_keys = [getattr(config, f"qk_{part}_head_dim", 0) for part in ("nope", "rope")]
    values, keys = getattr(config, "v_head_dim", None), getattr(config, "qk_head_dim", None) or sum(of_keys)
    if values is not None and values != keys and not torch.cuda.is_available():  # flex attention has no such limit
        refuse(f"values of another size than the keys (v_head_dim = {values}) on a CPU")
    if any(hasattr(config, name) for name in ("vision_config", "audio_config", "text_config")):
        refuse("multimodal models")
    if model_config.use_fused_kernels or model_config.use_liger:
        refuse("fused kernels")


def refuse_module(module: torch.nn.Module, *arguments: str) -> None:
    """Refuse a model whose forward does not accept what the engine passes.

    Args:
        arguments: the names that the forward must have.

    Raises:
        TreeRefusedError: it does not.
    """
    known = signature(module.forward).parameters
    if not getattr(module, "_supports_attention_backend", False) or any(name not in known for name in arguments):
        refuse(f"{type(module).__name__}, whose forward does not follow transformers' attention interface")

"""The shape of a LoRA adapter, and its format for PEFT, vLLM, and transformers: a folder with two files.

Standard library only, like ``publication``.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_trainer.errors import PublicationError
from lightning_trainer.models.resolve import ADAPTER_CONFIG

ADAPTER_WEIGHTS = "adapter_model.safetensors"
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The ranks that vLLM reserves room for."""
_LARGEST_RANK = _RANKS[-1]


def reserved_rank(rank: int) -> int:
    """Return vLLM's ``max_lora_rank`` for adapters up to a rank."""
    return next(reserved for reserved in _RANKS if reserved >= rank)


@dataclass(frozen=True, slots=True)
class AdapterShape:
    """The scaling of an adapter's matrices, and the layers that they belong to."""

    rank: int
    alpha: int
    target_modules: tuple[str, ...]
    """Last name parts of the linear layers that the adapter changes, sorted."""

    def __post_init__(self) -> None:
        for name, value, largest in (("rank", self.rank, _LARGEST_RANK), ("alpha", self.alpha, 2**31)):
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= largest:
                raise PublicationError(f"adapter: {name} is {value!r}; it must be an integer from 1 to {largest}")
        modules = self.target_modules
        if not modules or not isinstance(modules, tuple) or not all(isinstance(name, str) and name for name in modules):
            raise PublicationError(f"adapter: target_modules is {modules!r}; it must name linear layers")

    def to_json(self) -> dict[str, Any]:
        """Return the fields for a publication's JSON."""
        return {"rank": self.rank, "alpha": self.alpha, "target_modules": list(self.target_modules)}

    def tensor_shapes(self, base: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the adapter's tensors by PEFT's names.

        Args:
            base: the model's tensors by name.
        """
        shapes: dict[str, tuple[int, ...]] = {}
        for name, shape in base.items():
            module, _, last = name.rpartition(".")
            if last == "weight" and len(shape) == 2 and module.rpartition(".")[2] in self.target_modules:
                shapes[f"base_model.model.{module}.lora_A.weight"] = (self.rank, shape[1])
                shapes[f"base_model.model.{module}.lora_B.weight"] = (shape[0], self.rank)
        return shapes

    def write_config(self, folder: Path, base_model: str | None = None) -> None:
        """Complete a folder that contains ``ADAPTER_WEIGHTS`` so that PEFT can load it.

        Args:
            base_model: the model that the adapter belongs to, for tools that load it by name.
        """
        document = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base_model,
            "r": self.rank,
            "lora_alpha": self.alpha,
            "lora_dropout": 0.0,
            "target_modules": list(self.target_modules),
            "bias": "none",
            "inference_mode": True,
        }
        (folder / ADAPTER_CONFIG).write_text(json.dumps(document, indent=2), encoding="utf-8")

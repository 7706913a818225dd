"""The LoRA adapter inside a module: its matrices under PEFT's names, and what became of ``all-linear``."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from peft.tuners.lora import LoraLayer

from lightning_trainer.config.policies.updates import LoraConfig
from lightning_trainer.errors import TrainingError
from lightning_trainer.serving.adapter import AdapterShape
from lightning_trainer.training.update.exporting import gathered_by_first
from lightning_trainer.training.update.rounding import local_values

_IN_MODULE = ".default."
"""PEFT's name of the one adapter of a module; files do not carry it."""


def adapter_tensors(module: torch.nn.Module, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return the values to publish, as ``gathered_by_first`` does."""
    named = module.named_parameters()
    return gathered_by_first(
        ((name.replace(_IN_MODULE, "."), one.detach()) for name, one in named if one.requires_grad), dtype
    )


def name_in_module(name: str) -> str:
    """Return PEFT's name inside of a module for a matrix in a file."""
    layer, _, matrix = name.rpartition(".lora_")
    return f"{layer}.lora_{matrix[0]}{_IN_MODULE}{matrix[2:]}"


def adapter_shape(module: torch.nn.Module, lora: LoraConfig) -> AdapterShape:
    """Return the shape with the layers that PEFT chose."""
    layers = {name.split(".lora_")[0] for name, value in module.named_parameters() if value.requires_grad}
    names = sorted({layer.rpartition(".")[2] for layer in layers})
    return AdapterShape(rank=lora.rank, alpha=lora.alpha, target_modules=tuple(names))


def adapter_values(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a copy of what this process holds of the matrices, by PEFT's names."""
    return {name: place.clone() for name, place in _places(module).items()}


def put_values(module: torch.nn.Module, values: Mapping[str, torch.Tensor]) -> None:
    """Write what ``adapter_values`` gave into the module."""
    places = _places(module)
    for name, value in values.items():
        places[name].copy_(value)


@contextmanager
def with_values(module: torch.nn.Module, values: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Let the module compute with these values; afterwards it has its own back, bit for bit, even if these change."""
    own = adapter_values(module)
    try:
        put_values(module, values)
        yield
    finally:
        put_values(module, own)


def _places(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the matrices themselves; look them up each time, since offloading between passes moves them."""
    return {
        name: local_values(parameter.detach())
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    }


@contextmanager
def without_adapter(module: torch.nn.Module) -> Iterator[None]:
    """Let the base model compute without its adapter.

    PEFT's own switch also clears ``requires_grad``; FSDP reads that only once, and would never train the adapter again.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, LoraLayer)]
    scalings = [dict(layer.scaling) for layer in layers]
    try:
        for layer in layers:
            layer.scaling.update(dict.fromkeys(layer.scaling, 0.0))
        yield
    finally:
        for layer, scaling in zip(layers, scalings, strict=True):
            layer.scaling.update(scaling)


def require_layers(module: torch.nn.Module, lora: LoraConfig) -> None:
    """Check that each named layer exists; PEFT is content if one of several names is a layer's.

    Raises:
        TrainingError: a name is no linear layer's.
    """
    asked = set() if isinstance(lora.target_modules, str) else set(lora.target_modules)
    if absent := sorted(asked - set(adapter_shape(module, lora).target_modules)):
        raise TrainingError(
            f"lora.target_modules names {', '.join(absent)}, and the model has no linear layer of that name; leave it "
            "out"
        )

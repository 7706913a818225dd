"""A model's weights as one safetensors file: the checkpoint's own parameter names, one dtype, no tied duplicate."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor


def exported_tensors(module: torch.nn.Module, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return the values to publish, rounded once to ``dtype`` (to nearest even).

    Names that share a parameter (tied embeddings) give one tensor, under the name that comes first.
    """
    first_names = {name for name, _ in module.named_parameters()}
    shared_names = {name for name, _ in module.named_parameters(remove_duplicate=False)} - first_names
    return {
        name: _local(tensor).to(dtype, copy=True).contiguous()
        for name, tensor in module.state_dict().items()
        if name not in shared_names
    }


def write_atomically(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write a safetensors file that is whole or not there."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        save_file(dict(tensors), partial, metadata={"format": "pt"})
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def rounded_weights(module: torch.nn.Module, published: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Let the module compute with the published values; afterwards it has its own back, bit for bit."""
    parameters = {name: _local(parameter.detach()) for name, parameter in module.named_parameters()}
    masters = {name: parameter.clone() for name, parameter in parameters.items()}
    try:
        for name, parameter in parameters.items():
            parameter.copy_(published[name])
        yield
    finally:
        for name, parameter in parameters.items():
            parameter.copy_(masters[name])


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor

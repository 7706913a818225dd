"""A model's weights as one safetensors file: the checkpoint's own parameter names, one dtype, no tied duplicate."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor
from transformers.core_model_loading import revert_weight_conversion


def exported_tensors(module: torch.nn.Module, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return the values to publish, as ``gathered_by_first`` does.

    Names that share a parameter (tied embeddings) give one tensor, under the name that comes first.
    """
    first_names = {name for name, _ in module.named_parameters()}
    shared_names = {name for name, _ in module.named_parameters(remove_duplicate=False)} - first_names
    named = module.state_dict().items()
    return gathered_by_first(((name, tensor) for name, tensor in named if name not in shared_names), dtype)


def gathered_by_first(named: Iterable[tuple[str, torch.Tensor]], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return whole values in ``dtype``, in the machine's memory; rounded to nearest, unless they were rounded before.

    Every process of the group must call this; all except the first, which alone writes them, get nothing: a machine
    with eight processes does not hold the model eight times.
    """
    kept, first = {}, torch.distributed.get_rank() == 0
    for name, tensor in named:
        whole = whole_values(tensor)
        if first:
            kept[name] = whole.to("cpu", dtype, copy=True).contiguous()
    return kept


def as_in_checkpoints(module: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors under the names of a module's checkpoints, given those under the module's own names.

    transformers computes with all experts of a layer in one tensor; the model folder, and so the engine, has a tensor
    for each.
    """
    converted = revert_weight_conversion(module, dict(tensors))  # pyright: ignore[reportArgumentType]
    return {
        name: tensor if tensor is tensors.get(name) else tensor.clone(memory_format=torch.contiguous_format)
        for name, tensor in converted.items()
    }


def write_atomically(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write a safetensors file that is either complete or absent.

    Raises:
        OSError: the disk could not be written; safetensors' own error for that, which is no ``OSError``, becomes one.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        save_file(dict(tensors), partial, metadata={"format": "pt"})
        os.replace(partial, path)
    except SafetensorError as error:
        raise OSError(f"{path}: {error}") from error
    finally:
        partial.unlink(missing_ok=True)


def whole_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole values of a parameter; every process that holds a part of it must call this."""
    if not isinstance(tensor, DTensor):
        return tensor
    # Offloaded parts are gathered on the device: NCCL works in no other memory.
    on_device: Any = tensor.to(tensor.device_mesh.device_type)
    return on_device.full_tensor()

"""verl's device in this process, and our engines in its registry.

Only verl's public registries are used, and nothing in verl is patched. verl looks an engine up by (device, vendor), and
takes the vendor from ``VERL_ENGINE_VENDOR`` if that is set: ours have two vendors of their own on every device, and a
strategy without an engine of ours (``megatron`` ...) uses verl's own.

verl 0.9.1 has no platform for a CPU, so what it asks of a device is answered here. The platform is set by code, because
verl logs a plugin that fails to load at DEBUG level only and then falls back to CUDA. On GPUs verl's own platforms are
used as they are. verl's engine module reads the device once, at import: ``install`` must have run before it.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import psutil
import torch
from verl.plugin.platform import set_platform
from verl.plugin.platform.platform_base import PlatformBase

from lightning_trainer.config.hardware import Device
from lightning_trainer.errors import TrainingError

STOCK, TREE = "lightning-stock", "lightning-tree"
"""Vendor keys in verl's engine registry."""
DEVICES = ["cpu", "cuda"]
_VENDOR = "VERL_ENGINE_VENDOR"


def install(device: Device) -> None:
    """Make ``device`` verl's device in this process.

    Raises:
        TrainingError: verl runs on another device nevertheless.
    """
    if device == "cpu":
        set_platform(CpuPlatform())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one for every backend that is not installed
        from verl.workers.engine.fsdp import transformer_impl

    if (found := transformer_impl.device_name) != device:
        raise TrainingError(
            f"verl runs on {found!r} instead of {device!r}: its engines were imported before "
            "lightning_trainer.training; import lightning_trainer.training.trainer first"
        )


@contextmanager
def engines_of(vendor: str) -> Iterator[None]:
    """Let verl build the engines of a vendor while the block runs."""
    before = os.environ.get(_VENDOR)
    os.environ[_VENDOR] = vendor
    try:
        yield
    finally:
        os.environ.pop(_VENDOR)
        if before is not None:
            os.environ[_VENDOR] = before


def require_strategy(strategy: str, kind: str, device: Device) -> None:
    """Check that verl has an engine for a strategy on a device.

    Raises:
        TrainingError: it has none, or the engine's packages are not installed.
    """
    from verl.workers.engine import EngineRegistry

    by_strategy: dict[str, dict[Any, Any]] = EngineRegistry._engines.get(kind, {})
    there = sorted(
        name
        for name, engines in by_strategy.items()
        if any((key if isinstance(key, str) else key[0]) == device for key in engines)
    )
    if strategy not in there:
        what = "value models" if kind == "value_model" else "language models"
        raise TrainingError(
            f'strategy = "{strategy}": verl has no such engine for {what} on "{device}" here, or its packages are not '
            f"installed; there is {', '.join(there)}"
        )


class _CpuDeviceModule(ModuleType):
    """``torch.cpu`` with the calls of ``torch.cuda`` that verl makes on its device module."""

    def __init__(self) -> None:
        super().__init__("lightning_cpu")

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def is_available(self) -> bool:
        return False  # "is there an accelerator": verl's memory helpers then return early

    def device_count(self) -> int:
        return 1

    def set_device(self, device: Any) -> None:
        """There is one device."""

    def empty_cache(self) -> None:
        """There is no cache."""

    def max_memory_allocated(self, device: Any = None) -> int:
        return 0

    def max_memory_reserved(self, device: Any = None) -> int:
        return 0

    def memory_allocated(self, device: Any = None) -> int:
        return 0

    def memory_reserved(self, device: Any = None) -> int:
        return 0

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)


class CpuPlatform(PlatformBase):
    """Answers what verl asks of a device, for the CPU."""

    def __init__(self) -> None:
        self._module = _CpuDeviceModule()

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        return self._module

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return torch.device("cpu")  # verl moves tensors with ``.to(current_device())``; an index would mean cuda:0

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        """There is one device."""

    def synchronize(self, device_index: int | None = None) -> None:
        """CPU operations are done when they return."""

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """The system's allocator takes none."""

    def empty_cache(self) -> None:
        """There is no cache."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        """Nothing to profile."""

    def profiler_stop(self) -> None:
        """Nothing to profile."""

    def ray_resource_name(self) -> str:
        return "CPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def ray_resource_options(self, num_gpus: float) -> dict[str, Any]:
        return {"num_cpus": num_gpus}

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None

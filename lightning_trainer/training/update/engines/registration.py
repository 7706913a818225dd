"""verl's device in this process, and our engines in its registry.

Only verl's public registries are used and nothing of it is patched. verl looks an engine up by (device, vendor), and
takes the vendor from ``VERL_ENGINE_VENDOR`` where that is set: ours have two vendors of their own on every device, and
a strategy that has none of ours (``megatron`` ...) is verl's own.

verl's engine module reads the device once, at import: ``install`` must have run before it.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from verl.plugin.platform import set_platform

from lightning_trainer.config.hardware import Device
from lightning_trainer.errors import TrainingError
from lightning_trainer.training.update.engines.cpu_platform import CpuPlatform

STOCK, TREE = "lightning-stock", "lightning-tree"
"""Vendor keys in verl's engine registry."""
DEVICES = ["cpu", "cuda"]
_VENDOR = "VERL_ENGINE_VENDOR"


def install(device: Device) -> None:
    """Make it verl's device in this process.

    Raises:
        TrainingError: verl runs on another device all the same.
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
    """Let verl build the engines of a vendor meanwhile."""
    before = os.environ.get(_VENDOR)
    os.environ[_VENDOR] = vendor
    try:
        yield
    finally:
        os.environ.pop(_VENDOR)
        if before is not None:
            os.environ[_VENDOR] = before


def require_strategy(strategy: str, kind: str, device: Device) -> None:
    """See that verl has an engine for a strategy on a device.

    Raises:
        TrainingError: it has none, or the packages of it are not installed.
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

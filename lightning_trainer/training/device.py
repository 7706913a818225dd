"""The device that verl uses in this process: chosen once, before verl is imported, because verl reads it on import."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from lightning_trainer.config.hardware import Device
from lightning_trainer.errors import TrainerBrokenError, TrainingError
from lightning_trainer.training.settings import TrainerSettings

_chosen: list[Device] = []
"""The chosen device, if there is one: at most one for the whole process, since verl reads its own on import."""


def choose(device: Device, gpus: Sequence[str] = ()) -> None:
    """Set this process's device; idempotent.

    Args:
        gpus: the only GPUs that this process sees; if empty, those that it already sees.

    Raises:
        TrainingError: another device was chosen before.
    """
    if _chosen and _chosen[0] != device:
        raise TrainingError(
            f'a trainer of this process computes on "{_chosen[0]}" already and another is to compute on "{device}"; '
            'set backend = "ray" in [training], where each has a process of its own'
        )
    _chosen[:] = [device]
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)


def chosen() -> Device:
    """Return the chosen device; "cpu" by default."""
    return _chosen[0] if _chosen else "cpu"


def require() -> None:
    """Check that torch can use the chosen device.

    Raises:
        TrainingError: it cannot.
    """
    import torch

    if chosen() == "cuda" and not torch.cuda.is_available():
        raise TrainingError(
            f"torch {torch.__version__} sees no GPU (CUDA_VISIBLE_DEVICES = "
            f"{os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')}): install a build of torch for this machine's "
            'driver, or set device = "cpu" in [training]'
        )


def release(offloaded: bool) -> None:
    """Return torch's cached GPU memory, if another process needs it between two calls."""
    if offloaded and chosen() == "cuda":
        import torch

        torch.cuda.empty_cache()


@contextmanager
def settings_named_without_memory(settings: TrainerSettings) -> Iterator[None]:
    """If the block runs out of a GPU's memory, raise an error that names the settings with which it needs less.

    Raises:
        TrainerBrokenError: it did; the work in progress is lost.
    """
    try:
        yield
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's error, recognized without importing torch
            raise
        said = str(error).partition(". ")[0]
        raise TrainerBrokenError(
            f"the trainer has too little memory ({said}); {_with_less_memory(settings)}"
        ) from error


def _with_less_memory(settings: TrainerSettings) -> str:
    ways = [f"lower max_sample_tokens of the policy for later steps (now {settings.horizon})"]
    budget = settings.training.max_tokens_per_micro_batch
    if budget > settings.horizon:  # the longest sample goes through the model whole
        ways.insert(0, f"lower max_tokens_per_micro_batch in [training] (now {budget})")
    if not settings.training.gradient_checkpointing:
        ways.append("set gradient_checkpointing = true in [training]")
    if settings.training.param_offload:
        ways.append("lower gpu_memory_utilization in [engine] if it does not sleep")
    if settings.lora is None:
        ways.append("train an adapter ([policy.lora])")
    return f"{', '.join(ways[:-1])}, or {ways[-1]}" if len(ways) > 1 else ways[0]

"""The device that verl uses in this process: chosen once, before verl is imported, because verl reads it on import."""

import os
from collections.abc import Sequence

from lightning_trainer.config.hardware import Device
from lightning_trainer.errors import TrainingError

_chosen: list[Device] = []
"""At most one, for the whole process, like verl's own, which is read on import."""


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
    """Check that torch can use it.

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

"""The device that verl computes on in this process: chosen once, before verl is imported, which reads it once."""

import os
from collections.abc import Sequence

from lightning_trainer.config.hardware import Device
from lightning_trainer.errors import TrainingError

_chosen: list[Device] = []
"""One at most, and of the process: so is verl's, which reads it when it is imported."""


def choose(device: Device, gpus: Sequence[str] = ()) -> None:
    """Make it this process's; again is the same as once.

    Args:
        gpus: the only ones that this process sees; those that it sees already when there are none.

    Raises:
        TrainingError: it has another one already.
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
    """Return what was chosen; "cpu" where nobody has."""
    return _chosen[0] if _chosen else "cpu"


def require() -> None:
    """See that torch can compute on it.

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
    """Give back what torch keeps of a GPU's memory for itself, where someone else needs it between two calls."""
    if offloaded and chosen() == "cuda":
        import torch

        torch.cuda.empty_cache()

"""The GPUs of this machine that this process may use, as CUDA_VISIBLE_DEVICES names them; found without torch."""

import importlib.metadata
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator

Device: TypeAlias = Literal["cpu", "cuda"]

_DEVICES = Path("/dev")
_GPU = re.compile(r"nvidia\d+")
_ID = re.compile(r"\d{1,3}|(?:GPU|MIG)-[0-9A-Za-z/_-]{4,80}")


def visible_gpus(devices: Path = _DEVICES) -> tuple[str, ...]:
    """Return one name a GPU: what CUDA_VISIBLE_DEVICES lists, else the numbers of the device files, from 0."""
    files = sum(_GPU.fullmatch(file.name) is not None for file in devices.glob("nvidia*"))
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if files == 0:
        return ()
    if listed is None:
        return tuple(map(str, range(files)))
    return tuple(name for name in listed.replace(" ", "").split(",") if name and name != "-1")


def trainable_device() -> Device:
    """Return "cuda" where there is a GPU and a build of torch that computes on it, else "cpu"."""
    if not visible_gpus():
        return "cpu"
    try:
        build = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "cpu"
    return "cpu" if "+cpu" in build else "cuda"


def _named(value: Any) -> str:
    name = str(value)
    if isinstance(value, bool) or not _ID.fullmatch(name):
        raise ValueError(
            f"{value!r} names no GPU; write its number (0) or its UUID (GPU-...), as nvidia-smi -L shows them"
        )
    return name


GpuName: TypeAlias = Annotated[str, BeforeValidator(_named)]
"""A number or a UUID."""

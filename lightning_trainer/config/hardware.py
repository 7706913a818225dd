"""The machine as the configuration sees it: cores, the precision in which they are fast, and GPUs by name."""

import importlib.metadata
import os
import re
import subprocess
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator

# The processor: how many of its cores are ours, and in which precision it multiplies matrices at full speed.

Dtype: TypeAlias = Literal["bfloat16", "float32"]

_CGROUP = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
_CPUINFO = Path("/proc/cpuinfo")
_WITH_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}
"""Flags of x86-64 (the first two) and of ARM."""


def available_cores() -> int:
    """Return the number of whole cores that this process may use, at least 1: more threads would spin."""
    return max(1, int(usable_cores()))


def usable_cores() -> float:
    """Return how many cores this process may use: those of its affinity, at most what container and cgroups allow."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min((float(cores), *_quotas()))


def _quotas() -> Iterator[float]:
    """Yield the limits of all cgroups that this process is in, in cores.

    Source: cgroups(7). Version 2 has quota and period in one file, version 1 in two. In a container the paths of
    ``/proc/self/cgroup`` may be those of the host: then only the root exists, which is the container's.
    """
    for line in _lines(_MEMBERSHIP):
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        place = _CGROUP / "cpu" if controllers else _CGROUP
        for name in ("", *path.strip("/").split("/")):
            place /= name
            words = [word for file in _QUOTA_FILES for text in _lines(place / file) for word in text.split()]
            if len(words) == 2 and all(map(str.isdigit, words)):  # no limit: "max", or -1
                quota, period = map(int, words)
                yield quota / period


_QUOTA_FILES = ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


@cache
def fast_dtype(cpuinfo: Path = _CPUINFO) -> Dtype:
    """Return bfloat16 if the processor has instructions for it, else float32.

    Without them PyTorch emulates products in bfloat16: one core of an AVX2 machine did 9 GFLOP/s in bfloat16 and 65 to
    80 in float32, with matrices of 576 by 1,536 and 70 rows or more.
    """
    flags = next((line for line in _lines(cpuinfo) if line.startswith(("flags", "Features"))), "")
    return "bfloat16" if _WITH_BFLOAT16 & set(flags.split()) else "float32"


def fast_engine_dtype() -> Dtype:
    """Return the fast precision for the engine, which uses a GPU if it may use one."""
    return "bfloat16" if visible_gpus() else fast_dtype()


# The GPUs of this machine that this process may use, as CUDA_VISIBLE_DEVICES names them; found without torch.

Device: TypeAlias = Literal["cpu", "cuda"]

_DEVICES = Path("/dev")
_GPU = re.compile(r"nvidia\d+")
_ID = re.compile(r"\d{1,3}|(?:GPU|MIG)-[0-9A-Za-z/_-]{4,80}")


def visible_gpus(devices: Path = _DEVICES) -> tuple[str, ...]:
    """Return a name for each GPU: what CUDA_VISIBLE_DEVICES lists, else the numbers of the device files, from 0."""
    files = sum(_GPU.fullmatch(file.name) is not None for file in devices.glob("nvidia*"))
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if files == 0:
        return ()
    if listed is None:
        return tuple(map(str, range(files)))
    return tuple(name for name in listed.replace(" ", "").split(",") if name and name != "-1")


_QUERY = ("nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader,nounits")


def gpu_uuids() -> Mapping[str, str]:
    """Return the UUID of each GPU, by its number; empty if nvidia-smi does not say."""
    try:
        said = subprocess.run(_QUERY, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    rows = (line.split(",") for line in said.splitlines())
    return {row[0].strip(): row[1].strip() for row in rows if len(row) == 2}


def comparable(names: Collection[str]) -> Mapping[str, str]:
    """Return a name for each GPU, such that a GPU named both by number and by UUID has one name.

    If both forms occur, numbers become UUIDs; anything that nvidia-smi does not know, such as a part of a GPU (MIG),
    keeps its name.
    """
    mixed = len({name.isdigit() for name in names}) > 1
    uuids = gpu_uuids() if mixed else {}
    # CUDA accepts the beginning of a UUID for the whole.
    whole = {name: [uuid for uuid in uuids.values() if uuid.startswith(name)] for name in names}
    return {name: uuids.get(name) or (whole[name][0] if len(whole[name]) == 1 else name) for name in names}


def trainable_device() -> Device:
    """Return "cuda" if there is a GPU and a build of torch that computes on it, else "cpu"."""
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
            f"{value!r} does not name a GPU; write its number (0) or its UUID (GPU-...), as nvidia-smi -L shows them"
        )
    return name


GpuName: TypeAlias = Annotated[str, BeforeValidator(_named)]
"""A GPU's number or UUID."""


def each_once(gpus: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the GPUs of a setting. Raises ValueError: one is named twice."""
    for gpu in gpus or ():
        if gpus is not None and gpus.count(gpu) > 1:
            raise ValueError(f"gpus names {gpu} twice; leave one out")
    return gpus

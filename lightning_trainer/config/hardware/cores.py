"""The processor: how many of its cores are ours, and the precision that it multiplies matrices in at full speed."""

import os
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

Dtype: TypeAlias = Literal["bfloat16", "float32"]

_CPUINFO = Path("/proc/cpuinfo")
_NVIDIA = Path("/dev/nvidiactl")
_WITH_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}
"""Flags of x86-64 (the first two) and of ARM."""


def available_cores() -> int:
    """Return the number of cores that this process may run on (containers and ``taskset`` included)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def fast_dtype(cpuinfo: Path = _CPUINFO) -> Dtype:
    """Return bfloat16 where the processor has instructions for it, else float32.

    Without them PyTorch emulates products in bfloat16: one core of an AVX2 machine did 9 GFLOP/s in it and 65 to 80 in
    float32, in matrices of 576 by 1,536 with 70 rows and more.
    """
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "float32"
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return "bfloat16" if _WITH_BFLOAT16 & set(flags.split()) else "float32"


def fast_engine_dtype() -> Dtype:
    """Return the same for the engine, which takes a GPU where there is one."""
    return "bfloat16" if _NVIDIA.exists() else fast_dtype()

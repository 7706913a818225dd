"""The environment that the engine's process starts in; what only vLLM reads is set there (``host.environment``)."""

import os
from pathlib import Path

from lightning_trainer.serving.settings import EngineSettings

_NOT_INHERITED = ("PYTHONHOME", "VLLM_API_KEY", "VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND")
"""What would change the engine behind the configuration's back."""

_DEFAULTS = {
    # glibc gives freed blocks back to the kernel, so each pass over the vocabulary (13 MB for 68 tokens of SmolLM2's)
    # faults its pages in anew: seven of eight page faults and a fifth of the processor time of publishing an adapter.
    # The largest threshold that glibc takes, and what it keeps for reuse at the end of a heap at most; in bytes.
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(256 * 2**20),
}
"""What the user has not set. glibc reads these once, before the process runs anything of ours."""


def engine_environment(site: Path, settings: EngineSettings) -> dict[str, str]:
    """Return this process's environment as the engine is to have it.

    Args:
        site: the folder that our package is found in.
    """
    environment = _DEFAULTS | {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    inherited = environment.pop("PYTHONPATH", "") if settings.engine.python is None else ""
    if settings.gpus is not None:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(settings.gpus)
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, (str(site), inherited)))}

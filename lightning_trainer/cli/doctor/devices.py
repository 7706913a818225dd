"""The GPUs of this machine, and who would get which."""

import subprocess

from lightning_trainer.cli.doctor.check import Check, failure, ok, warning
from lightning_trainer.config import Config
from lightning_trainer.config.hardware import trainable_device, visible_gpus
from lightning_trainer.daemon.hardware.dealing import deal
from lightning_trainer.errors import ConfigError

_QUERY = ("nvidia-smi", "--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits")


def check_gpus(config: Config) -> Check:
    """Check that there are as many as the configuration asks for, and show how they are dealt out."""
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
    if config.training.device == "cpu" and trainable_device() == "cpu":
        return warning(
            "GPUs", found, "Install a build of torch for this machine's driver: the trainer computes on the processor."
        )
    return ok("GPUs", found)


def _described(gpus: tuple[str, ...]) -> str:
    """What they are, as the driver says; their names alone where it does not."""
    try:
        said = subprocess.run(_QUERY, capture_output=True, text=True, timeout=10, check=True).stdout
        rows = [[part.strip() for part in line.split(",")] for line in said.splitlines() if line.strip()]
        named = {index: f"{index} ({name}, {float(mib) / 1024:.0f} GiB)" for index, name, mib in rows}
    except (OSError, subprocess.SubprocessError, ValueError):
        named = {}
    return ", ".join(named.get(gpu, gpu) for gpu in gpus)

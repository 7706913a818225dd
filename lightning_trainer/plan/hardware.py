"""Hardware in words: ``1x80GB``, ``8x80GB``, ``2x8x80GB`` (nodes, GPUs per node, memory per GPU), or ``auto``."""

import re
import subprocess
from dataclasses import dataclass

from lightning_trainer.config.hardware import visible_gpus
from lightning_trainer.errors import ConfigError

GIB = 2**30
_WORDS = re.compile(r"(?:(\d{1,4})x)?(\d{1,2})x(\d{1,4}(?:\.\d)?)\s*GB", re.IGNORECASE)
_QUERY = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU's memory and peak rates, which are those of a usual card with that memory (see ``_CARDS``)."""

    memory: float
    """Bytes."""
    flops: float
    """Peak rate in bfloat16, FLOP per second."""
    bandwidth: float
    """Peak memory bandwidth, bytes per second."""
    card: str


_CARDS = (
    (24, 165e12, 1.008e12, "RTX 4090"),
    (48, 362e12, 0.864e12, "L40S"),
    (80, 312e12, 2.039e12, "A100 80GB"),
    (141, 989e12, 4.8e12, "H200"),
    (192, 2250e12, 8.0e12, "B200"),
)
"""Memory in GB, dense bfloat16 rate, bandwidth. Source: the manufacturer's data sheets."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """Nodes with equal GPUs."""

    nodes: int
    gpus_per_node: int
    gpu: Gpu

    @property
    def gpus(self) -> int:
        """Return the number of GPUs of all nodes."""
        return self.nodes * self.gpus_per_node

    def __str__(self) -> str:
        nodes = f"{self.nodes}x" if self.nodes > 1 else ""
        return f"{nodes}{self.gpus_per_node}x{self.gpu.memory / 1e9:.0f}GB"


def hardware(words: str) -> Hardware:
    """Parse a description of hardware.

    Raises:
        ConfigError: the description has another form, or ``auto`` finds no GPU.
    """
    if words == "auto":
        return _found()
    match = _WORDS.fullmatch(words.strip())
    if match is None or 0 in map(float, (match[1] or 1, match[2], match[3])):
        raise ConfigError(
            f"hardware {words!r}: write GPUs x memory as in 1x80GB, with nodes before it 2x8x80GB, or auto"
        )
    return Hardware(int(match[1] or 1), int(match[2]), card(float(match[3])))


def card(gigabytes: float) -> Gpu:
    """Return the largest usual card with at most that memory, or the smallest card if all have more."""
    _, flops, bandwidth, name = next((one for one in reversed(_CARDS) if one[0] <= gigabytes), _CARDS[0])
    return Gpu(gigabytes * 1e9, flops, bandwidth, name)


def _found() -> Hardware:
    count = len(visible_gpus())
    try:
        said = subprocess.run(_QUERY, capture_output=True, text=True, timeout=10, check=True).stdout if count else ""
        sizes = [float(line) * 2**20 for line in said.split()]
    except (OSError, subprocess.SubprocessError, ValueError):
        sizes = []
    if not sizes:
        raise ConfigError(
            "hardware auto: this machine has no GPU that nvidia-smi shows; say which is meant, as in --hardware 1x80GB "
            "(what a processor needs, lightning-trainer doctor says)"
        )
    return Hardware(1, count, card(min(sizes) / 1e9))

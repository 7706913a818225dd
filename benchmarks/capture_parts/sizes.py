"""How much of everything: ``FULL`` is what the goals are for, ``QUICK`` takes minutes, ``TINY`` keeps it working."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    name: str
    cost_calls: int
    """Calls a block, delivered before it ends; blocks of all instrumentations alternate. Short ones: a machine is quiet
    for moments and not for seconds."""
    cost_blocks: int
    burst_spans: int
    outage_s: float
    kills: int
    """How often the daemon is killed in the middle of ingest."""
    killed_spans: int
    agent_kills: int
    writers: int
    writer_spans: int
    ingest_spans: int
    gateway_calls: int
    gateway_warm_up: int
    """Calls before memory is looked at: by then the caches, which are bounded, are full."""
    streams: int
    absent_calls: int
    absent_blocks: int
    rollouts: int
    """Concurrent rollouts in one process."""
    peers: bool = True


FULL = Sizes("full", 25, 180, 50_000, 60.0, 5, 20_000, 10, 8, 2_000, 1_000_000, 4_000, 1_500, 500, 200, 40, 40)
QUICK = Sizes("quick", 25, 24, 5_000, 3.0, 5, 2_500, 3, 8, 300, 50_000, 400, 1_500, 500, 60, 10, 40)
TINY = Sizes("tiny", 3, 1, 200, 0.5, 1, 200, 1, 2, 20, 600, 10, 20, 5, 3, 1, 3, peers=False)

"""Sizes of the measurements: goals are stated for ``FULL``, ``QUICK`` takes minutes, ``TINY`` only tests the code."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    name: str
    cost_calls: int
    """Calls a block, delivered before it ends; blocks of all instrumentations alternate. They are short, because a
    machine is quiet for moments and not for seconds."""
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
    """Calls before memory is measured: by then the caches, which are bounded, are full."""
    streams: int
    """At once; and ``alone`` of them one after the other in each block. A token comes every ``token_pause_s``."""
    absent_calls: int
    absent_blocks: int
    rollouts: int
    """Concurrent rollouts in one process."""
    peers: bool = True
    alone: int = 4
    token_pause_s: float = 0.005
    larger_answers: int = 200
    """Answers of each kind that are read alone, to measure what the larger answer costs."""


FULL = Sizes(
    name="full",
    cost_calls=25,
    cost_blocks=180,
    burst_spans=50_000,
    outage_s=60.0,
    kills=5,
    killed_spans=20_000,
    agent_kills=10,
    writers=8,
    writer_spans=2_000,
    ingest_spans=1_000_000,
    gateway_calls=4_000,
    gateway_warm_up=1_500,
    streams=500,
    absent_calls=200,
    absent_blocks=40,
    rollouts=40,
)
QUICK = Sizes(
    name="quick",
    cost_calls=25,
    cost_blocks=24,
    burst_spans=5_000,
    outage_s=3.0,
    kills=5,
    killed_spans=2_500,
    agent_kills=3,
    writers=8,
    writer_spans=300,
    ingest_spans=50_000,
    gateway_calls=400,
    gateway_warm_up=1_500,
    streams=500,
    absent_calls=60,
    absent_blocks=10,
    rollouts=40,
)
TINY = Sizes(
    name="tiny",
    cost_calls=3,
    cost_blocks=1,
    burst_spans=200,
    outage_s=0.5,
    kills=1,
    killed_spans=200,
    agent_kills=1,
    writers=2,
    writer_spans=20,
    ingest_spans=600,
    gateway_calls=10,
    gateway_warm_up=20,
    streams=5,
    absent_calls=3,
    absent_blocks=1,
    rollouts=3,
    peers=False,
    alone=1,
    token_pause_s=0.001,
    larger_answers=10,
)

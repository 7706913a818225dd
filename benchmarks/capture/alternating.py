"""Several programs that do the same thing, in turns, so that other load on the machine falls on all of them."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.common.processes import Child


@dataclass(frozen=True, slots=True)
class Measured:
    cpu_ms: float
    """CPU a call, median of the blocks."""
    added_cpu_ms: float
    """More than the first program's: median of the differences of blocks that followed each other."""
    quiet_cpu_ms: float
    """CPU a call at quiet moments: the 5th percentile of the calling thread's CPU, and delivery.

    A neighbor on the same core makes a call up to twice as expensive and never cheaper, and there may be quiet moments
    as long as a call when there are none as long as a block. Between two identical programs, the cheapest of 80 blocks
    differed by up to 0.32 ms, the 5th percentile of their calls by up to 0.16.
    """
    delivery_cpu_ms: float
    """The part of ``cpu_ms`` that is used outside the calls: by other threads, and to wait for delivery."""
    added_wall_ms: float


def take_turns(children: Sequence[Child], *, calls: int, blocks: int) -> list[Measured]:
    """Measure each program; the others are compared with the first. The caller ends each with ``end`` afterwards."""
    for child in children:
        child.ask("go", max(3, calls // 10))
    turns = []
    for number in range(blocks):
        # Neither always first nor always after the same neighbor.
        order = [(position + number) % len(children) for position in range(len(children))]
        told = {position: children[position].ask("go", calls) for position in order}
        turns.append([told[position] for position in range(len(children))])
    return [
        _measured([turn[position] for turn in turns], [turn[0] for turn in turns]) for position in range(len(children))
    ]


def _measured(blocks: list[dict[str, Any]], first: list[dict[str, Any]]) -> Measured:
    calls_ms = sorted(cpu_ms for block in blocks for cpu_ms in block["calls_cpu_ms"])
    delivery_ms = statistics.median(block["delivery_cpu_ms"] for block in blocks)
    pairs = list(zip(blocks, first, strict=True))
    return Measured(
        cpu_ms=statistics.median(block["cpu_ms"] for block in blocks),
        added_cpu_ms=statistics.median(one["cpu_ms"] - other["cpu_ms"] for one, other in pairs),
        quiet_cpu_ms=calls_ms[len(calls_ms) // 20] + delivery_ms,
        delivery_cpu_ms=delivery_ms,
        added_wall_ms=statistics.median(one["wall_p50_ms"] - other["wall_p50_ms"] for one, other in pairs),
    )

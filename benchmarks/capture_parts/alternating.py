"""Several programs that do the same thing, in turns, so that whatever else the machine does falls on all of them."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from capture_parts.processes import Child


@dataclass(frozen=True, slots=True)
class Measured:
    cpu_ms: float
    """CPU a call, median of the blocks."""
    added_cpu_ms: float
    """Over the first program: median of the differences of blocks that followed each other."""
    quietest_added_cpu_ms: float
    """Over the first program: each in its cheapest block. What else the machine does can only make a block dearer."""
    others_cpu_ms: float
    """Of ``cpu_ms``, what threads other than the calling one used: delivery."""
    added_wall_ms: float


def take_turns(children: Sequence[Child], *, calls: int, blocks: int) -> list[Measured]:
    """Measure each; the first is what the others are compared with. Each ends with ``end`` afterwards."""
    for child in children:
        child.ask("go", max(3, calls // 10))
    turns = []
    for number in range(blocks):
        # Neither always first nor always after the same neighbour.
        order = [(position + number) % len(children) for position in range(len(children))]
        told = {position: children[position].ask("go", calls) for position in order}
        turns.append([told[position] for position in range(len(children))])
    return [
        Measured(
            statistics.median(turn[position]["cpu_ms"] for turn in turns),
            statistics.median(turn[position]["cpu_ms"] - turn[0]["cpu_ms"] for turn in turns),
            min(turn[position]["cpu_ms"] for turn in turns) - min(turn[0]["cpu_ms"] for turn in turns),
            statistics.median(turn[position]["others_cpu_ms"] for turn in turns),
            statistics.median(turn[position]["wall_p50_ms"] - turn[0]["wall_p50_ms"] for turn in turns),
        )
        for position in range(len(children))
    ]

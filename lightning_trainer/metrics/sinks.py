"""Where rows go: a sink takes each step's row once, in order."""

from collections.abc import Mapping
from typing import Protocol

from lightning_trainer.metrics.row import StepMetrics


class MetricsSink(Protocol):
    """A sink that raises is left out, and the run goes on."""

    def write(self, row: StepMetrics, warnings: Mapping[str, str]) -> None:
        """Take a row and what is wrong at its step, by rule."""
        ...

    def close(self) -> None:
        """Hand on what is still held back; may wait for a network."""
        ...


def with_warnings(row: StepMetrics, warnings: Mapping[str, str]) -> dict[str, float]:
    """Return a row's numbers and ``warnings/RULE`` = 1.0 for what is wrong: for sinks that take numbers only."""
    return {**row.values, **{f"warnings/{rule}": 1.0 for rule in warnings}}

"""Rows as JSON lines: ``{"policy", "step", NAME: NUMBER ..., "warnings": {RULE: SENTENCE}}``.

Every line is whole: what a crash cut off is removed at the next start, and the row is written again.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from lightning_trainer.metrics.row import StepMetrics

# Where rows go: a sink takes each step's row once, in order.


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


_TAIL = 2**16


class JsonLines:
    """Appends to one file of one policy."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        self.last_step = self._mend()
        """Of the newest whole line; 0 when there is none."""

    def write(self, row: StepMetrics, warnings: Mapping[str, str]) -> None:
        line = json.dumps({**row.to_json(), "warnings": dict(warnings)}, allow_nan=False)
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        self.last_step = row.step

    def close(self) -> None:
        self._file.close()

    def _mend(self) -> int:
        """Cut off what follows the last whole line, and return its step; however long the file is, its end is read."""
        size = self._file.seek(0, os.SEEK_END)
        length = _TAIL
        while True:
            start = max(0, size - length)
            self._file.seek(start)
            tail = self._file.read(size - start)
            end = tail.rfind(b"\n") + 1
            while end > 0:
                begin = tail.rfind(b"\n", 0, end - 1) + 1
                if begin == 0 and start > 0:
                    break  # the line may begin before what was read
                if (step := _step(tail[begin:end])) is not None:
                    self._file.truncate(start + end)
                    return step
                end = begin
            if start == 0:
                self._file.truncate(0)
                return 0
            length *= 4


def _step(line: bytes) -> int | None:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return None

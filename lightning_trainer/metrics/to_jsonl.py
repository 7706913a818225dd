"""Rows as JSON lines: ``{"policy", "step", NAME: NUMBER ..., "warnings": {RULE: SENTENCE}}``.

Every line is complete: one that a crash cut short is removed at the next start, and its row is written again.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from lightning_trainer.metrics.row import StepMetrics


class MetricsSink(Protocol):
    """A destination of rows: it gets each step's row once, in order. One that raises is dropped; the run goes on."""

    def write(self, row: StepMetrics, warnings: Mapping[str, str]) -> None:
        """Take a step's row and its warnings, by rule."""
        ...

    def close(self) -> None:
        """Send what is still buffered; may wait for the network."""
        ...


def with_warnings(row: StepMetrics, warnings: Mapping[str, str]) -> dict[str, float]:
    """Return a row's numbers, and ``warnings/RULE`` = 1.0 for each warning, for sinks that take only numbers."""
    return {**row.values, **{f"warnings/{rule}": 1.0 for rule in warnings}}


_TAIL = 2**16


class JsonLines:
    """Appends rows to the file of one policy."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        self.last_step = self._mend()
        """The step of the last complete line; 0 if there is none."""

    def write(self, row: StepMetrics, warnings: Mapping[str, str]) -> None:
        line = json.dumps({**row.to_json(), "warnings": dict(warnings)}, allow_nan=False)
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        self.last_step = row.step

    def close(self) -> None:
        self._file.close()

    def _mend(self) -> int:
        """Truncate the file after its last complete line and return that line's step; reads only the file's end."""
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

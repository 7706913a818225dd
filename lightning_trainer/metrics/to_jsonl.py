"""Rows as JSON lines: ``{"policy", "step", NAME: NUMBER ..., "warnings": {RULE: SENTENCE}}``.

Every line is whole: what a crash cut off is removed at the next start, and the row is written again.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from lightning_trainer.metrics.row import StepMetrics


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
        self._file.seek(0)
        last_step = end = 0
        for line in self._file:
            try:
                last_step = int(json.loads(line)["step"])
            except (ValueError, KeyError, TypeError):
                break
            if not line.endswith(b"\n"):
                break
            end += len(line)
        self._file.truncate(end)
        return last_step if end else 0

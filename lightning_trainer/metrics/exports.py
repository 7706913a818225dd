"""Where rows of metrics go: JSON lines, TensorBoard, Weights & Biases.

A JSON line is ``{"policy", "step", NAME: NUMBER ..., "warnings": {RULE: SENTENCE}}``. Every line is complete: one that
a crash cut short is removed at the next start, and its row is written again. ``tensorboard --logdir`` on the state
folder's ``metrics`` shows the scalars; TensorBoard's own writer is used, so that the daemon need not import torch. In
Weights & Biases each file of JSON lines is one run, which a restarted daemon resumes.
"""

import importlib.util
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from lightning_trainer.config.metrics import WandbConfig
from lightning_trainer.errors import ConfigError, MissingExtraError
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


def tensorboard_installed() -> bool:
    """Whether TensorBoard is installed; looks it up without importing it."""
    return importlib.util.find_spec("tensorboard") is not None


class TensorBoard:
    """A sink that writes event files into one folder; a restart adds a file."""

    def __init__(self, folder: Path) -> None:
        """Open the folder.

        Raises:
            MissingExtraError: tensorboard is not installed.
        """
        try:
            from tensorboard.summary import Writer
        except ImportError as error:
            raise MissingExtraError(
                "metrics.tensorboard is true and tensorboard is not installed: pip install tensorboard, or set it to "
                "false"
            ) from error
        self._writer = Writer(str(folder))

    def write(self, row: StepMetrics, warnings: Mapping[str, str]) -> None:
        for name, value in with_warnings(row, warnings).items():
            self._writer.add_scalar(name, value, row.step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """A sink that queues rows for the service's own process, which sends them."""

    def __init__(self, settings: WandbConfig, *, policy: str, state_dir: Path) -> None:
        """Start or resume the run; asks the service for it when online.

        Raises:
            MissingExtraError: wandb is not installed.
            ConfigError: the service refused (no key, no such entity).
        """
        try:
            import wandb
        except ImportError as error:
            raise MissingExtraError(
                "metrics.wandb is set and wandb is not installed: pip install wandb, or take the section out"
            ) from error
        folder = state_dir / "metrics"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._run = wandb.init(
                project=settings.project,
                entity=settings.entity,
                name=settings.run or f"{policy} {state_dir.name}",
                id=_kept_id(folder / f"{policy}.wandb-run"),
                resume="allow",
                mode=settings.mode,
                dir=str(folder),
            )
        except Exception as error:  # wandb raises whatever its transport raises; it all means that there is no run
            raise ConfigError(
                f'metrics.wandb cannot be used ({error}); run `wandb login`, set mode to "offline", or take it out'
            ) from error

    def write(self, row: StepMetrics, warnings: Mapping[str, str]) -> None:
        self._run.log(with_warnings(row, warnings), step=row.step)

    def close(self) -> None:
        self._run.finish()


def _kept_id(file: Path) -> str:
    """Return the run's id, made now if there is none yet.

    It is kept next to the JSON lines and set aside with them: the service ignores rows of steps that a run has already,
    so wherever steps count from one again, they need a run of their own.
    """
    kept = file.read_text() if file.exists() else ""
    if not kept:
        kept = secrets.token_hex(8)
        file.write_text(kept)
    return kept

"""Rows as TensorBoard scalars; ``tensorboard --logdir`` on the state folder's ``metrics`` shows them.

TensorBoard's own writer is used, so that the daemon need not import torch.
"""

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from lightning_trainer.errors import MissingExtraError
from lightning_trainer.metrics.row import StepMetrics
from lightning_trainer.metrics.to_jsonl import with_warnings


def installed() -> bool:
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

"""Passes every finished step to the sinks and the warning rules; none of them can stop the run.

The store is the source of truth: at start, rows that the files lack because of a crash are rebuilt from it.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from lightning_trainer.config.metrics import MetricsConfig
from lightning_trainer.errors import ConfigError
from lightning_trainer.metrics.exports import (
    JsonLines,
    MetricsSink,
    TensorBoard,
    WeightsAndBiases,
    tensorboard_installed,
)
from lightning_trainer.metrics.history import FIRST, RECENT, on_path, select_ends
from lightning_trainer.metrics.row import StepMetrics, select_rows
from lightning_trainer.metrics.warnings import warnings_of
from lightning_trainer.store.records import Rollback
from lightning_trainer.store.store import Store

_log = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 30.0


class MetricsRecorder:
    """Records one policy's rows, and keeps only those of its first and newest steps in memory."""

    def __init__(self, policy: str, store: Store, *, folder: Path, config: MetricsConfig | None = None) -> None:
        """``folder``: the state folder, in whose ``metrics`` the files are written."""
        self._policy = policy
        self._store = store
        self._folder = folder
        self._config = config or MetricsConfig()
        self._lines = JsonLines(folder / "metrics" / f"{policy}.jsonl")
        self._sinks: list[MetricsSink] = [self._lines]
        self.rows: list[StepMetrics] = []
        """First and newest rows, newest last; those in between are not kept."""
        self._rollbacks: list[Rollback] = []
        self.warnings: Mapping[str, str] = {}
        """What is wrong at the newest step that no rollback took back, in words, by rule."""

    async def start(self, say: Callable[[str], None]) -> None:
        """Open the sinks, read the store, and write the rows that the files lack; may wait for the network.

        Args:
            say: gets a sentence about a service that cannot be reached; a restart must not depend on one.

        Raises:
            MissingExtraError: a sink's package is not installed.
        """
        self._sinks += await asyncio.to_thread(_open_sinks, self._config, self._policy, self._folder, say)
        ends = await self._store.scan(lambda connection: select_ends(connection, self._policy))
        written = self._lines.last_step
        self.rows = [row for row in ends if row.step <= written]
        await self._catch_up(written)
        await self.look_back()

    async def step_ended(self, step: int) -> None:
        """Take the row of a step that was trained or skipped, after those before it that other daemons trained;
        repeating this changes nothing."""
        known = self.rows[-1].step if self.rows else 0
        if step > known:
            await self._catch_up(known, before=step + 1)
        await self.look_back()

    async def look_back(self) -> None:
        """Read the rollbacks, also another daemon's: warnings no longer consider the steps that were taken back."""
        self._rollbacks = await self._store.rollbacks(self._policy)
        self.warnings = warnings_of(on_path(self.rows, self._rollbacks), self._config.warnings)

    async def _catch_up(self, after: int, *, before: int | None = None) -> None:
        """Take every row between two steps, a page at a time."""
        policy = self._policy
        self._rollbacks = await self._store.rollbacks(policy)
        while page := await self._store.scan(
            lambda connection, after=after: select_rows(connection, policy, after=after, before=before, oldest=RECENT)
        ):
            for row in page:
                self._take(row)
            after = page[-1].step

    async def close(self) -> None:
        """Close the sinks; one that waits for a network is left behind after a while."""
        for sink in self._sinks:
            try:
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await asyncio.to_thread(sink.close)
            except Exception as error:  # third-party code: whatever it raises, the other sinks must still be closed
                _log.warning("%s did not close in order: %s: %s", type(sink).__name__, type(error).__name__, error)

    def _take(self, row: StepMetrics) -> None:
        self.rows.append(row)
        if len(self.rows) > FIRST + 2 * RECENT:
            del self.rows[FIRST:-RECENT]
        if row.step <= self._lines.last_step:
            return  # warnings about this step were logged before the restart
        before = [rollback for rollback in self._rollbacks if rollback.after_step < row.step]
        found = warnings_of(on_path(self.rows, before), self._config.warnings)
        for rule in found.keys() - self.warnings.keys():
            _log.warning("%s", found[rule])
        self.warnings = found
        for sink in list(self._sinks):
            try:
                sink.write(row, self.warnings)
            except Exception as error:  # third-party code: whatever it raises must not stop the run
                _log.warning("%s takes no more metrics: %s: %s", type(sink).__name__, type(error).__name__, error)
                self._sinks.remove(sink)


def _open_sinks(config: MetricsConfig, policy: str, folder: Path, say: Callable[[str], None]) -> list[MetricsSink]:
    sinks: list[MetricsSink] = []
    if config.tensorboard or (config.tensorboard is None and tensorboard_installed()):
        sinks.append(TensorBoard(folder / "metrics" / "tensorboard" / policy))
    if config.wandb is not None:
        try:
            sinks.append(WeightsAndBiases(config.wandb, policy=policy, state_dir=folder))
        except ConfigError as error:
            say(str(error))
    return sinks

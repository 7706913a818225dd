"""Takes every finished step to the sinks, the watchers and the rules; none of them can stop the run.

The store is the truth: on start the rows of steps that the files lack, because a crash came between, are made from it.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from lightning_trainer.config.metrics import MetricsConfig
from lightning_trainer.errors import ConfigError
from lightning_trainer.metrics.row import StepMetrics, select_rows
from lightning_trainer.metrics.to_jsonl import JsonLines, MetricsSink
from lightning_trainer.metrics.to_tensorboard import TensorBoard, installed
from lightning_trainer.metrics.to_wandb import WeightsAndBiases
from lightning_trainer.metrics.warnings import warnings_of
from lightning_trainer.store.store import Store

_log = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 30.0
_FIRST = 50
"""Rows of a run's start that stay in memory: what warnings compare with."""
_RECENT = 500
"""Rows of its end; those in between are in the store and in the files."""


class MetricsRecorder:
    """The rows of one policy: of its first steps and of its newest ones, however long the run is."""

    def __init__(self, policy: str, store: Store, *, folder: Path, config: MetricsConfig | None = None) -> None:
        """``folder``: of the state folder; its ``metrics`` gets the files."""
        self._policy = policy
        self._store = store
        self._folder = folder
        self._config = config or MetricsConfig()
        self._lines = JsonLines(folder / "metrics" / f"{policy}.jsonl")
        self._sinks: list[MetricsSink] = [self._lines]
        self.rows: list[StepMetrics] = []
        """Newest last; without those between the first ones and the recent ones."""
        self.warnings: Mapping[str, str] = {}
        """What is wrong at the newest step, in words, by rule."""

    async def start(self, say: Callable[[str], None]) -> None:
        """Open the sinks, read what the store holds, and write what the files lack of it; may wait for a network.

        Args:
            say: told of a service that cannot be reached; a restart must not depend on it.

        Raises:
            MissingExtraError: a sink's package is not installed.
        """
        self._sinks += await asyncio.to_thread(_open_sinks, self._config, self._policy, self._folder, say)
        policy, store = self._policy, self._store
        self.rows = await store.scan(lambda connection: select_rows(connection, policy, oldest=_FIRST))
        written = self._lines.last_step
        known = self.rows[-1].step if self.rows else 0
        recent = await store.scan(lambda connection: select_rows(connection, policy, newest=_RECENT))
        self.rows += [row for row in recent if known < row.step <= written]
        after = written
        self.rows = [row for row in self.rows if row.step <= written]
        while page := await store.scan(
            lambda connection, after=after: select_rows(connection, policy, after=after, oldest=_RECENT)
        ):
            for row in page:
                self._take(row)
            after = page[-1].step
        self.warnings = warnings_of(self.rows, self._config.warnings)

    async def step_ended(self, step: int) -> None:
        """Take the row of a step that was trained or skipped; again is the same as once."""
        if self.rows and step <= self.rows[-1].step:
            return
        for row in await self._store.scan(lambda connection: select_rows(connection, self._policy, only=step)):
            self._take(row)

    async def close(self) -> None:
        """Close the sinks; one that waits for a network is left behind after a while."""
        for sink in self._sinks:
            try:
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await asyncio.to_thread(sink.close)
            except Exception as error:  # someone else's writer: whatever it raises, there is more to take down
                _log.warning("%s did not close in order: %s: %s", type(sink).__name__, type(error).__name__, error)

    def _take(self, row: StepMetrics) -> None:
        self.rows.append(row)
        if len(self.rows) > _FIRST + 2 * _RECENT:
            del self.rows[_FIRST:-_RECENT]
        if row.step <= self._lines.last_step:
            return  # all of this was said before the restart
        found = warnings_of(self.rows, self._config.warnings)
        for rule in found.keys() - self.warnings.keys():
            _log.warning("%s", found[rule])
        self.warnings = found
        for sink in list(self._sinks):
            try:
                sink.write(row, self.warnings)
            except Exception as error:  # someone else's writer: whatever it raises, the run is worth more
                _log.warning("%s takes no more metrics: %s: %s", type(sink).__name__, type(error).__name__, error)
                self._sinks.remove(sink)


def _open_sinks(config: MetricsConfig, policy: str, folder: Path, say: Callable[[str], None]) -> list[MetricsSink]:
    sinks: list[MetricsSink] = []
    if config.tensorboard or (config.tensorboard is None and installed()):
        sinks.append(TensorBoard(folder / "metrics" / "tensorboard" / policy))
    if config.wandb is not None:
        try:
            sinks.append(WeightsAndBiases(config.wandb, policy=policy, state_dir=folder))
        except ConfigError as error:
            say(str(error))
    return sinks

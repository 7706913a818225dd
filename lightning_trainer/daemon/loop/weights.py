"""The weights that a policy's trainer holds: recovered from the records, moved by a step, saved, published.

Invariant: after a crash the newest checkpoint is loaded and the recorded batches since then are repeated in order,
which gives the same weights as if nothing had happened. With changed settings it gives others: such weights are neither
published under the old version's number, nor saved, nor trained on.
"""

import logging
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import replace

from lightning_trainer.daemon.loop.building import served
from lightning_trainer.daemon.loop.checkpoints import CheckpointFolder, recover
from lightning_trainer.daemon.loop.context import LoopContext
from lightning_trainer.daemon.loop.trained_with import trained_with
from lightning_trainer.daemon.publication.publishing import Publisher
from lightning_trainer.daemon.watching.progress import Phase
from lightning_trainer.errors import (
    CheckpointError,
    PublicationError,
    SettingsChangedError,
    StoreError,
    TrainingError,
)
from lightning_trainer.store.records import StepState
from lightning_trainer.training.remote import TrainerClient
from lightning_trainer.types import PolicyVersion, TrainingBatch, VersionState

_log = logging.getLogger(__name__)

_RECENT_VERSIONS = 1000
"""How far back staleness is counted in versions, beyond max_staleness."""


class Weights:
    """What the trainer holds, and which recorded steps it is made of."""

    def __init__(
        self, context: LoopContext, *, trainer: TrainerClient, publisher: Publisher, checkpoints: CheckpointFolder
    ) -> None:
        self._policy = context.policy
        self._store = context.store
        self._trainer = trainer
        self._publisher = publisher
        self._checkpoints = checkpoints
        self._progress = context.progress
        self._metrics = context.metrics
        self._rollbacks = context.rollbacks
        self.step = 0
        """The newest recorded step, trained or not."""
        self._path: list[int] = [0]
        """The versions that the present weights are made of, the present one last."""
        self._settled = False
        """Whether the trainer holds those weights: not in the middle of a step, nor after one that failed."""
        self._untouched = True
        """Whether the trainer holds the model that the run started from; never after a step that was only begun."""
        self._closed = False
        """Whether the trainer was closed, because nothing is to be trained."""

    @property
    def path(self) -> frozenset[int]:
        """Return the versions that the present weights are made of, served or not."""
        return frozenset(self._path)

    async def recover(self, *, restart: bool) -> PolicyVersion:
        """Bring the trainer to the weights that the records lead to, and return what came of publishing them.

        Raises:
            SettingsChangedError: with the present settings, the trainer arrives at other weights, or may not go on.
        """
        self._settled = False
        restart = restart or self._closed
        if restart:
            await self._trainer.restart()
            self._closed = False
        fresh, self._untouched = restart or self._untouched, False
        recovered = await recover(
            self._policy,
            store=self._store,
            trainer=self._trainer,
            publisher=self._publisher,
            checkpoints=self._checkpoints,
            progress=self._progress,
            fresh=fresh,
        )
        self._untouched = recovered.path == (0,)
        self.step, self._path, self._settled = recovered.step, list(recovered.path), True
        version = self._path[-1]
        asked = self._rollbacks.pending
        asked_for = recovered.asked_for or (asked is not None and asked.recorded)
        try:
            published = await self._publish(version, asked_for=asked_for, changed=recovered.changed)
        except SettingsChangedError:
            self._settled = False
            raise
        await self._prune()
        if version == self.step > 0:
            await self._metrics.step_ended(self.step)
        await self._progress.finish_step(self.step)
        return published

    async def train(self, batch: TrainingBatch, seconds: Mapping[str, float]) -> None:
        """Take the recorded step, save a checkpoint if one is due, and publish the new weights."""
        step = self.step
        self._progress.enter(Phase.TRAINING, f"step {step}: {len(batch.samples)} samples")
        self._settled = self._untouched = False
        report = await self._trainer.step(await self._store.with_media(batch))
        settings = trained_with(self._policy, step)
        report = replace(report, seconds={**seconds, **report.seconds}, settings=settings)
        await self._store.finish_step(self._policy.name, report, StepState.TRAINED)
        self._path.append(step)
        self._settled = True
        if step % self._policy.checkpoint_every == 0:
            await self.save_if_possible()
        await self._publish(step)

    def holds(self, version: int) -> bool:
        """Whether the trainer holds the weights of a version and can publish them now."""
        return self._settled and not self._closed and self._path[-1] == version

    async def publish_again(self) -> PolicyVersion:
        """Publish the present weights because a person wants them: neither guard nor canary is asked."""
        return await self._publish(self._path[-1], asked_for=True)

    async def save(self) -> None:
        """Write a checkpoint of the present weights unless there is one, or another daemon trains the policy by now.

        Raises:
            TrainingError: the trainer is in the middle of a step, or cannot write it.
        """
        if self._closed:
            return
        if not self._settled:
            raise TrainingError("the trainer is in the middle of a step")
        version = self._path[-1]
        if version > 0 and version not in self._checkpoints.steps() and await self._is_ours():
            await self._trainer.save(self._checkpoints.path(version), version)
            await self._prune()

    async def save_if_possible(self) -> None:
        """Save, and go on if the checkpoint cannot be written: the step is recorded, so a restart only takes longer."""
        try:
            await self.save()
        except CheckpointError as error:
            sentence = f"no checkpoint of step {self.step} ({error}); the next one is tried, and training goes on"
            self._progress.say(sentence)
            _log.error("%s", sentence)

    async def close(self) -> None:
        """Give the trainer's memory back: the weights are proven served, and nothing is to be trained."""
        await self._trainer.close()
        self._closed = True

    async def served(self) -> tuple[int, ...]:
        """Return the served versions that the present weights are made of, ascending."""
        # The newest versions may include some that a rollback took back; older versions do not matter.
        newest = (self._policy.max_staleness or 0) + _RECENT_VERSIONS
        versions = await self._store.served_versions(self._policy.name, newest=newest)
        recent = self._path[bisect_left(self._path, versions[0]) :] if versions else []
        return served(versions, frozenset(recent))

    async def _prune(self) -> None:
        """Remove the checkpoints that training does not continue from, unless another daemon may continue from them."""
        if await self._is_ours():
            self._checkpoints.prune(self._path)

    async def _is_ours(self) -> bool:
        """Whether the store says that this daemon trains the policy, for a whole turn from now on."""
        try:
            return await self._store.renew_turn(self._policy.name)
        except StoreError as error:
            _log.warning("the checkpoints of %s stay as they are: %s", self._policy.name, error)
            return False

    async def _publish(self, version: int, *, asked_for: bool = False, changed: str | None = None) -> PolicyVersion:
        self._progress.enter(Phase.PUBLISHING, f"version {version}")
        published = await self._publisher.publish(version=version, step=version, asked_for=asked_for, changed=changed)
        if (refused := refusal(published)) is not None:
            self._progress.say(str(refused))
        return published


def refusal(version: PolicyVersion) -> PublicationError | None:
    """Return why a version is not served; None if it is live."""
    if version.state is VersionState.LIVE:
        return None
    return PublicationError(f"{version.name} was refused, and what was served before goes on: {version.reason}")

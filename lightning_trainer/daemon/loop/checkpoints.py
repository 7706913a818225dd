"""Where a policy's checkpoints are, and how the recorded weights come back from them after a start, a crash, or a
rollback.

``step-00000010`` and so on, complete or absent: the trainer writes one under a temporary name and renames it, so one
with a final name is complete. After a rollback there may be checkpoints of steps that the current weights do not
descend from: training never continues from those.
"""

import logging
import re
import shutil
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from lightning_trainer.config import PolicyConfig
from lightning_trainer.daemon.loop.trained_with import (
    changed_since,
    require_made_for,
    require_same_stage,
    trained_with,
)
from lightning_trainer.daemon.publication.publishing import Publisher
from lightning_trainer.daemon.watching.progress import Phase, Progress
from lightning_trainer.errors import CheckpointError
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.records import StepState
from lightning_trainer.store.store import Store
from lightning_trainer.store.tables.steps import select_states
from lightning_trainer.store.tables.versions import select_rollbacks
from lightning_trainer.store.upkeep.files import aside_of
from lightning_trainer.training.remote import TrainerClient
from lightning_trainer.versions.archive import set_policy_aside
from lightning_trainer.versions.lineage import Lineage

_log = logging.getLogger(__name__)

_NAME = re.compile(r"step-(\d{8})")


class CheckpointFolder:
    """The checkpoints of one policy, newest last."""

    def __init__(self, root: Path, *, keep: int) -> None:
        self.root = root
        self._keep = keep

    def path(self, step: int) -> Path:
        """Return where a step's checkpoint is, or would be."""
        return self.root / f"step-{step:08d}"

    def steps(self) -> list[int]:
        """Return the steps that have a complete checkpoint, ascending."""
        if not self.root.is_dir():
            return []
        return sorted(int(match[1]) for entry in self.root.iterdir() if (match := _NAME.fullmatch(entry.name)))

    def latest(self, lineage: Collection[int]) -> int | None:
        """Return the newest checkpoint of these versions."""
        return max((step for step in self.steps() if step in lineage), default=None)

    def set_damaged_aside(self, step: int) -> Path | None:
        """Rename a step's checkpoint, which :meth:`prune` removes, and return where it is now; None if it stays."""
        try:
            return self.path(step).rename(aside_of(self.path(step)))
        except OSError:  # as on a disk that is read-only
            return None

    def set_aside(self) -> Path | None:
        """Rename the folder if there is a checkpoint in it, and return where it is now.

        Raises:
            CheckpointError: it cannot be renamed.
        """
        return set_policy_aside(self.root) if self.steps() else None

    def prune(self, lineage: Collection[int]) -> None:
        """Remove all but the newest ``keep`` of these versions, what is damaged, and what an interrupted save left."""
        usable = [step for step in self.steps() if step in lineage]
        kept = {self.path(step).name for step in usable[-self._keep :]}
        for entry in self.root.iterdir() if self.root.is_dir() else ():
            if entry.is_dir() and entry.name not in kept:
                shutil.rmtree(entry, ignore_errors=True)


def repeatable_from(root: Path, connection: Connection) -> dict[str, int]:
    """Return the step of the oldest checkpoint on each policy's path to its head, by the policy's name: no batch up to
    it is repeated. 0: none is on that path; policies without a checkpoint are left out.

    Checkpoints that a rollback leaves behind stay until training has recovered to the rollback's version, which repeats
    the batches before them.

    Args:
        root: the folder that holds all policies' folders.
    """
    folders = [entry for entry in root.iterdir() if entry.is_dir()] if root.is_dir() else []
    steps = {folder.name: CheckpointFolder(folder, keep=1).steps() for folder in folders}
    return {policy: _oldest_on_path(connection, policy, found) for policy, found in steps.items() if found}


def _oldest_on_path(connection: Connection, policy: str, saved: list[int]) -> int:
    rollbacks = select_rollbacks(connection, policy)
    if not rollbacks or saved[0] > rollbacks[-1].after_step:  # as nearly always, and cheap: a full store asks often
        return saved[0]
    states = select_states(connection, policy)
    path = Lineage((step for step, state in states.items() if state is not StepState.SKIPPED), rollbacks).path()
    return min((step for step in saved if step in path), default=0)


@dataclass(frozen=True, slots=True)
class Recovered:
    """The state that recovery found and restored."""

    step: int
    """The newest recorded step, trained or not; 0 if there is none."""
    path: tuple[int, ...]
    """The versions that the trainer's weights descend from, ending with their own."""
    asked_for: bool
    """Whether a person went back to the last of them, and no step has been trained since."""
    changed: str | None
    """The setting that has changed since a repeated step was first trained; None: none has."""


async def recover(
    policy: PolicyConfig,
    *,
    store: Store,
    trainer: TrainerClient,
    publisher: Publisher,
    checkpoints: CheckpointFolder,
    progress: Progress,
    fresh: bool,
) -> Recovered:
    """Load the newest checkpoint on the path to the current version, and repeat the recorded steps after it.

    Args:
        fresh: the trainer was just started and holds the model that the run started from.

    Checkpoints that training does not continue from stay; the caller removes them when it has published.

    Raises:
        TrainingError: the trainer failed, or checkpoints of another store are in the way.
        SettingsChangedError: a step that has no version yet would be taken on other weights than those before it, or
            by another algorithm than its batch was made for, and stays as it was; or the newest step is in another
            stage.
    """
    progress.enter(Phase.RECOVERING)
    name = policy.name
    states = await store.step_states(name)
    made = [step for step, state in states.items() if state is not StepState.SKIPPED]
    lineage = Lineage(made, await store.rollbacks(name))
    path = lineage.path()
    found = () if states else (checkpoints.set_aside(), await publisher.set_aside())
    if asides := [str(aside) for aside in found if aside is not None]:
        sentence = (
            f"the store has no step of policy {name}, but there were checkpoints or weights of versions, which another "
            f"store must know: they are in {' and '.join(asides)} now"
        )
        progress.say(sentence)
        _log.warning("%s", sentence)
    if trained := [step for step in path if states.get(step) is StepState.TRAINED]:
        require_same_stage(policy, await store.step(name, trained[-1]))
    saved = await _load_newest(path, trainer=trainer, checkpoints=checkpoints, progress=progress)
    if saved is None and not fresh:
        await trainer.restart()
    since = [one for one in await store.steps(name, after=saved or 0) if one.step in path]
    changed = changed_since(policy, since)
    for before, step in pairwise(path):
        if step <= (saved or 0):
            continue
        progress.enter(Phase.RECOVERING, f"repeating step {step}")
        batch = await store.batch(name, step)
        if states[step] is StepState.ASSIGNED:
            require_made_for(policy, batch)
        if changed is not None and await store.version(name, step) is None:  # no version to compare its result with
            await publisher.require_same(before, changed)
        report = await trainer.step(await store.with_media(batch))
        if states[step] is StepState.ASSIGNED:
            report = replace(report, settings=trained_with(policy, step))
            await store.finish_step(name, report, StepState.TRAINED)
    return Recovered(max(states, default=0), path, lineage.gone_back, changed)


async def _load_newest(
    path: Collection[int], *, trainer: TrainerClient, checkpoints: CheckpointFolder, progress: Progress
) -> int | None:
    """Load the newest sound checkpoint and return its step, None if there is none; set damaged ones aside.

    Raises:
        TrainingError: one cannot be read now, or is of another version of this program. Earlier ones would do, but when
            this one can be read again, nothing need be repeated.
    """
    for saved in reversed([step for step in checkpoints.steps() if step in path]):
        try:
            await trainer.load(checkpoints.path(saved))
        except CheckpointError as error:
            aside = checkpoints.set_damaged_aside(saved)
            now = "stays where it is" if aside is None else f"is set aside as {aside.name}"
            sentence = f"the checkpoint of step {saved} cannot be used and {now} ({error}); going on from before it"
            progress.say(sentence)
            _log.error("%s", sentence)
        else:
            return saved
    return None

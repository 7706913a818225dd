"""Restore the recorded weights in the trainer: after a start, a crash, or a rollback."""

import logging
from collections.abc import Collection
from dataclasses import dataclass

from lightning_trainer.daemon.loop.checkpoints import CheckpointFolder
from lightning_trainer.daemon.watching.progress import Phase, Progress
from lightning_trainer.errors import CheckpointError
from lightning_trainer.store.records import StepState
from lightning_trainer.store.store import Store
from lightning_trainer.training.remote import TrainerClient
from lightning_trainer.versions.lineage import Lineage

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recovered:
    """The state that recovery found and restored."""

    step: int
    """The newest recorded step, trained or not; 0 if there is none."""
    path: tuple[int, ...]
    """The versions that the trainer's weights descend from, ending with their own."""
    asked_for: bool
    """Whether a person went back to the last of them, and no step has been trained since."""


async def recover(
    policy: str,
    *,
    store: Store,
    trainer: TrainerClient,
    checkpoints: CheckpointFolder,
    progress: Progress,
    fresh: bool,
) -> Recovered:
    """Load the newest checkpoint on the path to the current version, and repeat the recorded steps after it.

    Args:
        fresh: the trainer was just started and holds the model that the run started from.

    Raises:
        TrainingError: the trainer failed.
    """
    progress.enter(Phase.RECOVERING)
    states = await store.step_states(policy)
    trained = [step for step, state in states.items() if state is not StepState.SKIPPED]
    rollbacks = await store.rollbacks(policy)
    path = Lineage(trained, rollbacks).path()
    checkpoints.prune(path)
    saved = await _load_newest(path, trainer=trainer, checkpoints=checkpoints, progress=progress)
    if saved is None and not fresh:
        await trainer.restart()
    for step in path:
        if step > (saved or 0):
            progress.enter(Phase.RECOVERING, f"repeating step {step}")
            report = await trainer.step(await store.with_media(await store.batch(policy, step)))
            if states[step] is StepState.ASSIGNED:
                await store.finish_step(policy, report, StepState.TRAINED)
    asked_for = bool(rollbacks) and rollbacks[-1].after_step >= max(trained, default=0)
    return Recovered(max(states, default=0), path, asked_for)


async def _load_newest(
    path: Collection[int], *, trainer: TrainerClient, checkpoints: CheckpointFolder, progress: Progress
) -> int | None:
    """Load the newest sound checkpoint and return its step; remove those that are not sound."""
    while (saved := checkpoints.latest(path)) is not None:
        try:
            await trainer.load(checkpoints.path(saved))
        except CheckpointError as error:
            sentence = (
                f"the checkpoint of step {saved} cannot be used and is removed ({error}); going on from before it"
            )
            progress.say(sentence)
            _log.error("%s", sentence)
            checkpoints.remove(saved)
        else:
            return saved
    return None

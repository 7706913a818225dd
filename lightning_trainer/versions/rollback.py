"""Rollback: one durable record, which the next daemon that trains follows, even after a crash."""

import time
from collections.abc import Collection

from lightning_trainer.errors import RollbackError
from lightning_trainer.store.records import Rollback, StepState
from lightning_trainer.store.store import Store
from lightning_trainer.types import PolicyVersion, VersionState
from lightning_trainer.versions.lineage import Lineage


async def read_lineage(store: Store, policy: str) -> Lineage:
    """Return the parent of every version of a policy."""
    steps = [step for step, state in (await store.step_states(policy)).items() if state is not StepState.SKIPPED]
    return Lineage(steps, await store.rollbacks(policy))


async def record_rollback(store: Store, policy: str, version: int, *, checkpoints: Collection[int] = ()) -> Rollback:
    """Make the next step continue from the weights of ``version``.

    Args:
        checkpoints: steps that the trainer can resume from.

    Raises:
        RollbackError: there is no such version, it was never served, training already continues from it, or the data to
            rebuild it was deleted.
    """
    await can_be_gone_to(store, policy, version, promote=False, checkpoints=checkpoints)
    return await store.put_rollback(policy, version, at_ns=time.time_ns())


async def record_promotion(
    store: Store, policy: str, version: int, *, checkpoints: Collection[int] = ()
) -> Rollback | None:
    """Make the next step continue from a version that was held back, so that it is published.

    Returns:
        None if training already continues from it.

    Raises:
        RollbackError: there is no such version, it was served before, or the data to rebuild it was deleted.
    """
    if not await can_be_gone_to(store, policy, version, promote=True, checkpoints=checkpoints):
        return None
    return await store.put_rollback(policy, version, at_ns=time.time_ns())


async def can_be_gone_to(
    store: Store, policy: str, version: int, *, promote: bool, checkpoints: Collection[int] = ()
) -> bool:
    """Whether training has to change to ``version`` from the version that it now continues from; records nothing.

    Raises:
        RollbackError: see ``record_rollback`` and ``record_promotion``.
    """
    known, lineage = await _known(store, policy, version)
    if promote and known.state is VersionState.RETIRED:
        raise RollbackError(f"{known.name} was served before; `lightning-trainer rollback {version}` goes back to it")
    if promote and version == lineage.head:
        return False
    if not promote and known.state in (VersionState.REFUSED, VersionState.TRAINED):
        raise RollbackError(
            f"{known.name} is {known.state} and was never served; `lightning-trainer promote {version}` serves it all "
            "the same"
        )
    if not promote and version == lineage.head:
        raise RollbackError(f"{known.name} is what training goes on from already")
    await _can_be_made(store, known, lineage, checkpoints)
    return True


async def _known(store: Store, policy: str, version: int) -> tuple[PolicyVersion, Lineage]:
    lineage = await read_lineage(store, policy)
    known = await store.version(policy, version) if version in lineage else None
    if known is None:
        raise RollbackError(f"policy {policy!r} has no version {version}; it has {await _listed(store, policy)}")
    return known, lineage


async def _can_be_made(store: Store, known: PolicyVersion, lineage: Lineage, checkpoints: Collection[int]) -> None:
    path = lineage.path(known.version)
    saved = max((step for step in checkpoints if step in path), default=0)
    gone = await store.without_batch(known.policy, [step for step in path if step > saved])
    if gone:
        raise RollbackError(
            f"{known.name} cannot be made again: the batches of {len(gone)} steps that lead to it ({gone[0]} to "
            f"{gone[-1]}) were deleted by retention, and no checkpoint is left between; choose a version that is newer "
            f"than step {gone[-1]}, and set [store] retention_size, retention_time or retention_steps higher"
        )


async def _listed(store: Store, policy: str) -> str:
    oldest, newest = await store.versions(policy, oldest=1), await store.versions(policy, newest=1)
    return f"{oldest[0].version} to {newest[0].version}" if oldest and newest else "none yet"

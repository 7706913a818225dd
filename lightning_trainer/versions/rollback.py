"""Going back to a version: one durable record; whoever trains next follows it, after a crash as well."""

import time

from lightning_trainer.errors import RollbackError
from lightning_trainer.store.records import Rollback, StepState
from lightning_trainer.store.sqlite import SqliteStore
from lightning_trainer.types import PolicyVersion, VersionState
from lightning_trainer.versions.lineage import Lineage


async def read_lineage(store: SqliteStore, policy: str) -> Lineage:
    """Return where every version of a policy came from."""
    steps = [step for step, state in (await store.step_states(policy)).items() if state is not StepState.SKIPPED]
    return Lineage(steps, await store.rollbacks(policy))


async def record_rollback(store: SqliteStore, policy: str, version: int) -> Rollback:
    """Make the weights of ``version`` those that the next step goes on from.

    Raises:
        RollbackError: there is no such version, it was never proven served, or it is the newest already.
    """
    versions = {known.version: known for known in await store.versions(policy)}
    lineage = await read_lineage(store, policy)
    if version not in versions or version not in lineage:
        raise RollbackError(f"policy {policy!r} has no version {version}; it has {_listed(versions)}")
    if versions[version].state in (VersionState.REFUSED, VersionState.TRAINED):
        raise RollbackError(
            f"{versions[version].name} is {versions[version].state} and was never proven served; choose another version"
        )
    if version == lineage.head:
        raise RollbackError(f"{versions[version].name} is what training goes on from already")
    return await store.put_rollback(policy, version, at_ns=time.time_ns())


def _listed(versions: dict[int, PolicyVersion]) -> str:
    return f"{min(versions)} to {max(versions)}" if versions else "none yet"

"""Serving the last served version again as soon as the engine starts, from its kept weights: the untrained model
answers no call while the trainer starts and recovers, nor later if the trainer cannot.

The engine proves the version before the first call begins, and has it again after a restart. That it is served is
recorded when training has recovered and publishes it.
"""

import asyncio
from collections.abc import Callable

from lightning_trainer.errors import PublicationError
from lightning_trainer.serving.replicas import EngineReplicas
from lightning_trainer.serving.shared_memory import WeightFolder
from lightning_trainer.store.store import Store
from lightning_trainer.versions.archive import VersionArchive
from lightning_trainer.versions.rollback import read_lineage

_INSTEAD = "version 0, the model itself, answers until training has recovered and publishes"


async def resume(
    policy: str,
    *,
    store: Store,
    archive: VersionArchive,
    weights: WeightFolder,
    engine: EngineReplicas,
    say: Callable[[str], None],
) -> None:
    """Have an engine that is not started yet serve the version that a person went back to last, or else the live one.

    Args:
        archive: of the policy; if it has neither of these versions, version 0 is served.
        say: is told that, or that the engine refuses the kept weights.

    Raises:
        StoreError: the store cannot be read.
    """
    wanted = await _served_last(policy, store)
    kept = archive.versions()
    version = next((one for one in wanted if one == 0 or one in kept), None)
    if not wanted or version == 0:
        return
    if version is None:
        say(f"{policy}@v{wanted[0]} was served last, and its weights are not kept: {_INSTEAD}")
        return

    def left_out(reason: str) -> None:
        say(f"{policy}@v{version} was served last, and what is kept of it cannot be served ({reason}): {_INSTEAD}")

    try:
        engine.resume(await asyncio.to_thread(archive.copy, version, weights.path(version)), left_out)
    except PublicationError as error:
        left_out(str(error))


async def _served_last(policy: str, store: Store) -> list[int]:
    """Return the version to serve, and, if there is another, the one to serve if the first one is not kept."""
    lineage, live = await read_lineage(store, policy), await store.live_version(policy)
    return [*([lineage.head] if lineage.gone_back else []), *([live.version] if live is not None else [])]

"""Keeping the weights of published versions by the policy's rule, alongside the loop: copying a file delays no step."""

import asyncio
import logging
from collections.abc import Callable, Collection

from lightning_trainer.config import PolicyConfig
from lightning_trainer.errors import LightningError
from lightning_trainer.serving.publication import Publication
from lightning_trainer.store.store import Store
from lightning_trainer.versions.archive import VersionArchive, kept
from lightning_trainer.versions.held_out import refresh_verdicts, select_scores

_log = logging.getLogger(__name__)


class VersionKeeper:
    """Copies the weights of one version at a time; a failure is logged and costs the run nothing."""

    def __init__(
        self,
        policy: PolicyConfig,
        *,
        store: Store,
        archive: VersionArchive,
        in_use: Callable[[], Collection[int]] = tuple,
    ) -> None:
        """``in_use``: old versions that are being served or that judge, whose files stay."""
        self._policy = policy
        self._store = store
        self.archive = archive
        self._in_use = in_use
        self._copying: asyncio.Task[None] | None = None

    def keep(self, publication: Publication) -> None:
        """Begin to copy an accepted version; await ``settled`` before its file may go."""
        self._copying = asyncio.create_task(self._keep(publication), name="version-keeper")

    async def settled(self) -> None:
        """Return when nothing is being copied."""
        if self._copying is not None:
            await self._copying

    async def _keep(self, publication: Publication) -> None:
        try:
            await asyncio.to_thread(self.archive.add, publication)
            await refresh_verdicts(self._store, self._policy)
            stored = self.archive.versions()
            scores = await self._store.scan(
                lambda connection: select_scores(connection, self._policy.name, min(stored), max(stored))
            )
            stay = kept(stored, scores, self._policy.versions, served=publication.version)
            await asyncio.to_thread(self.archive.prune, stay.union(self._in_use()))
        except LightningError as error:
            _log.warning("the weights of %s are not kept: %s", publication.name, error)
        except Exception:
            _log.exception("the weights of %s are not kept", publication.name)

"""What the gateway asks when a caller insists on a version that is not the one being served."""

from collections.abc import Sequence
from typing import Protocol

from lightning_trainer.gateway.engine.upstream import Upstream


class VersionLease(Protocol):
    """An engine that serves one old version, for one call."""

    @property
    def upstream(self) -> Upstream: ...

    def release(self) -> None:
        """The call has ended; once."""
        ...


class OldVersions(Protocol):
    def versions(self) -> Sequence[int]:
        """Return those that can be asked for, ascending."""
        ...

    async def lease(self, version: int) -> VersionLease | None:
        """Return where the version is served, or will be soon; None when its weights are not kept.

        Raises:
            EngineError: it cannot be served now.
        """
        ...

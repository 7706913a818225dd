"""How the file of a publication gets to where an engine reads it: one interface, a way for each place of the engine.

Invariant: whatever the way, it ends in a file in the shared memory of the engine's machine, and the engine checks,
loads and proves that one as any other (``serving.host.weights``). An adapter's file holds the adapter alone.
"""

from typing import Protocol

from lightning_trainer.serving.publication import Publication


class WeightTransport(Protocol):
    """Of one life of one engine."""

    async def bring(self, publication: Publication) -> Publication:
        """Return the publication with the path that the engine reads; what is there already is not brought again.

        Raises:
            EngineError: the engine's machine cannot be reached, or has no room.
            PublicationError: the file cannot be read.
        """
        ...

    async def settle(self, publication: Publication, *, served: bool) -> None:
        """Hear what became of it; copies that are not needed any longer may go."""
        ...


class SharedMemoryFile:
    """An engine on the trainer's machine reads the very file that the trainer wrote."""

    async def bring(self, publication: Publication) -> Publication:
        return publication

    async def settle(self, publication: Publication, *, served: bool) -> None:
        pass

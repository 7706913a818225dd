"""How a publication's file reaches the engine: one interface, one implementation per location of the engine.

Invariant: whatever the transport, it ends in a file in the shared memory of the engine's machine, which the engine
checks, loads, and proves like any other (``serving.host.weights``). An adapter's file contains only the adapter.
"""

from typing import Protocol

from lightning_trainer.serving.publication import Publication


class WeightTransport(Protocol):
    """The transport to one life of one engine."""

    async def bring(self, publication: Publication) -> Publication:
        """Return the publication with the path that the engine reads; a file already there is not transferred again.

        Raises:
            EngineError: the engine's machine cannot be reached, or has no room.
            PublicationError: the file cannot be read.
        """
        ...

    async def settle(self, publication: Publication, *, served: bool) -> None:
        """Learn the publication's outcome; copies that are no longer needed may be removed."""
        ...


class SharedMemoryFile:
    """The engine is on the trainer's machine and reads the file that the trainer wrote."""

    async def bring(self, publication: Publication) -> Publication:
        return publication

    async def settle(self, publication: Publication, *, served: bool) -> None:
        pass

"""How the engine's answer becomes the caller's: one object a call, whichever API the caller speaks."""

from typing import Any, Protocol

from lightning_trainer.gateway.errors import RefusalError


class Answer(Protocol):
    """Takes what the engine says, gives the bytes that go out. The transcript has each document before it does."""

    def whole(self, raw: bytes, document: dict[str, Any]) -> bytes:
        """Return the body for a response, given as the engine sent it and parsed."""
        ...

    def chunk(self, event: bytes, chunk: dict[str, Any]) -> bytes:
        """Return the events for one chunk of a stream, given as the engine sent it and parsed; none is b""."""
        ...

    def end(self, event: bytes) -> bytes:
        """Return what ends the stream; ``event`` is the engine's own end."""
        ...

    def broken(self, refusal: RefusalError) -> bytes:
        """Return the event that ends a stream which went wrong."""
        ...

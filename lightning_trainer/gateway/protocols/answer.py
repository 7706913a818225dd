"""Translation of the engine's answer into the caller's API: one object per call."""

from typing import Any, Protocol

from lightning_trainer.gateway.errors import RefusalError


class Answer(Protocol):
    """Translates the engine's answer into bytes for the caller. The transcript has read each document before."""

    def whole(self, raw: bytes, document: dict[str, Any]) -> bytes:
        """Return the body of a whole response, given as the engine sent it and as parsed."""
        ...

    def chunk(self, event: bytes, chunk: dict[str, Any]) -> bytes:
        """Return the events for one chunk of a stream, given as the engine sent it and as parsed; b"" for none."""
        ...

    def end(self, event: bytes) -> bytes:
        """Return the end of the stream; ``event`` is the engine's own."""
        ...

    def broken(self, refusal: RefusalError) -> bytes:
        """Return the event that ends a stream with an error."""
        ...

"""A response of the engine, read as a whole or streamed as it arrives."""

from collections.abc import AsyncIterator, Callable, Mapping

import aiohttp

from lightning_trainer.errors import EngineError


class EngineResponse:
    """Status, headers, and body of a response. While ``body`` is None, it holds a connection and must be closed.

    Args:
        ended: called once, when the response is read by ``read`` or closed.
    """

    def __init__(
        self, answer: aiohttp.ClientResponse, body: bytes | None = None, *, ended: Callable[[], None] | None = None
    ) -> None:
        self._answer = answer
        self._ended = ended
        self.status = answer.status
        self.headers: Mapping[str, str] = answer.headers
        self.body = body

    @property
    def is_success(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300

    @property
    def is_error(self) -> bool:
        """Whether the status is 400 or more."""
        return self.status >= 400

    async def read(self) -> bytes:
        """Read to the end and return the body.

        Raises:
            EngineError: the engine died, or sent nothing for too long.
        """
        if self.body is None:
            try:
                self.body = await self._answer.read()
            except (aiohttp.ClientError, OSError) as error:
                raise _gone(error) from error
            finally:
                self._end()
        return self.body

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield chunks as they arrive.

        Raises:
            EngineError: the engine died, or sent nothing for too long.
        """
        content = self._answer.content
        try:
            async for piece in content.iter_any():
                yield piece
        except (aiohttp.ClientError, OSError) as error:
            # aiohttp raises before it hands over bytes already received, which hold tokens that the engine did sample.
            content.set_exception(None)  # pyright: ignore[reportArgumentType]
            if rest := content.read_nowait():
                yield rest
            raise _gone(error) from error

    def close(self) -> None:
        """Close the connection; an engine that is still generating then stops."""
        self._answer.close()
        self._end()

    def _end(self) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended()


def _gone(error: Exception) -> EngineError:
    return EngineError(f"{type(error).__name__}: {error}")

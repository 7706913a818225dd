"""One response of the engine: read to the end, or piece by piece as it arrives."""

from collections.abc import AsyncIterator, Callable, Mapping

import aiohttp

from lightning_trainer.errors import EngineError


class EngineResponse:
    """Status, headers and body of a response; while ``body`` is None it holds a connection and has to be closed.

    Args:
        ended: called once, when it is read by ``read`` or closed.
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
        return 200 <= self.status < 300

    @property
    def is_error(self) -> bool:
        return self.status >= 400

    async def read(self) -> bytes:
        """Read to the end and return the body.

        Raises:
            EngineError: the engine went away, or fell silent.
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
        """Yield what has arrived, as soon as something has.

        Raises:
            EngineError: the engine went away, or fell silent.
        """
        content = self._answer.content
        try:
            async for piece in content.iter_any():
                yield piece
        except (aiohttp.ClientError, OSError) as error:
            # aiohttp raises before it hands over what had come until then: tokens that the engine did sample.
            content.set_exception(None)  # pyright: ignore[reportArgumentType]
            if rest := content.read_nowait():
                yield rest
            raise _gone(error) from error

    def close(self) -> None:
        """Let go of the connection; where the engine is not done, that tells it to stop."""
        self._answer.close()
        self._end()

    def _end(self) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended()


def _gone(error: Exception) -> EngineError:
    return EngineError(f"{type(error).__name__}: {error}")

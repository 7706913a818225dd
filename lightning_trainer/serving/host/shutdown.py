"""Why and when the host stops: a signal, or a failure that leaves nothing to serve."""

import asyncio
import signal

from lightning_trainer.errors import EngineError


class Ending:
    """Set once, by a signal (the parent's end arrives as SIGTERM) or by ``fail``."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._failure: str | None = None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._event.set)

    def fail(self, reason: str) -> None:
        """End with an error; the first reason counts."""
        self._failure = self._failure or reason
        self._event.set()

    async def wait(self) -> None:
        """Wait for the end.

        Raises:
            EngineError: it is a failure.
        """
        await self._event.wait()
        if self._failure is not None:
            raise EngineError(self._failure)


def interruptible_startup() -> None:
    """Make the signals raise at once: vLLM's start-up blocks the event loop, whose own handlers would come too late."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)


def _interrupt(*_: object) -> None:
    raise SystemExit(0)

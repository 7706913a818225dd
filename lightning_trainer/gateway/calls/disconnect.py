"""Work for a caller who may hang up: it is cancelled as soon as the connection is closed, or the caller tries again."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

Result = TypeVar("Result")


class CallerGoneError(Exception):
    """Nobody waits for the answer any longer; the message says why."""


async def unless_gone(receive: Receive, abandoned: asyncio.Future[str], work: Coroutine[Any, Any, Result]) -> Result:
    """Run the work to its end, or until nobody waits for it. The request's body must have been read before.

    Args:
        abandoned: done when the caller made the same call again; its result says so in a sentence.

    Raises:
        CallerGoneError: the work has been cancelled.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({working, watching, abandoned}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise CallerGoneError(abandoned.result() if abandoned.done() else "the caller disconnected")
    finally:
        for task in (working, watching):
            task.cancel()
        # Both have really ended before anything else happens: the upstream connection is released by then.
        await asyncio.gather(working, watching, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

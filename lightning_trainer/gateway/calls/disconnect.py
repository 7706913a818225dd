"""Work for a caller that may hang up: it is canceled when the connection closes or the caller retries."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

Result = TypeVar("Result")


class CallerGoneError(Exception):
    """The caller is gone and nothing waits for the answer any longer; the message gives the reason."""


async def unless_gone(receive: Receive, abandoned: asyncio.Future[str], work: Coroutine[Any, Any, Result]) -> Result:
    """Run the work to its end, or until its caller is gone. The request's body must have been read before.

    Args:
        abandoned: resolved when the caller made the same call again; its result is the reason, as a sentence.

    Raises:
        CallerGoneError: the work has been canceled.
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
        # Wait until both have really ended: only then is the upstream connection released.
        await asyncio.gather(working, watching, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

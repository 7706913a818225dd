"""Work for a caller who may hang up: it is cancelled as soon as the connection is closed."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

Result = TypeVar("Result")


class CallerGoneError(Exception):
    """The caller closed the connection before the work was done."""


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Run the work to its end, or until the caller is gone. The request's body must have been read before.

    Raises:
        CallerGoneError: the caller is gone and the work has been cancelled.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise CallerGoneError
    finally:
        for task in (working, watching):
            task.cancel()
        # Both have really ended before anything else happens: the upstream connection is released by then.
        await asyncio.gather(working, watching, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

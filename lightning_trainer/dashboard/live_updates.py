"""Server-sent events: the server tells a page that there is something new and how long to wait between two fetches, and
the page fetches itself again. Pages that ask for the same thing at the same time share one rendering.

One task checks for all pages, once a second and only while any are open; a check takes microseconds. Source: HTML
Living Standard, 9.2 Server-sent events.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lightning_trainer.dashboard.rendering import SECURITY
from lightning_trainer.dashboard.site import Site
from lightning_trainer.errors import LightningError

MOST_LISTENERS = 128
_LOOK_EVERY_S = 1.0
_BEAT_EVERY_S = 15.0
_PACE_MS, _PACE_MS_A_PAGE = 3_000, 100
"""Shortest time between two fetches of a page; it grows with the open pages, so that they cost a fixed share."""
_SHARED_FOR_S = 1.0
_HEAD = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
    *((name.encode(), value.encode()) for name, value in SECURITY.items()),
]


class LiveUpdates:
    """Tells all open pages of one daemon when there is something new."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._listeners: set[asyncio.Event] = set()
        self._looking: asyncio.Task[None] | None = None
        self._told = ""
        self.number = 0
        """Grows whenever there is something new."""

    @property
    def full(self) -> bool:
        """Whether there are as many listeners as are allowed."""
        return len(self._listeners) >= MOST_LISTENERS

    async def events(self) -> AsyncIterator[bytes]:
        """Yield an event whenever there is something new, and a comment in long pauses, until the caller stops."""
        changed = asyncio.Event()
        self._listeners.add(changed)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="dashboard updates")
        try:
            yield b"retry: 2000\n\n"
            while True:
                try:
                    async with asyncio.timeout(_BEAT_EVERY_S):
                        await changed.wait()
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                changed.clear()
                yield f"id: {self.number}\nevent: changed\ndata: {self._pace_ms()}\n\n".encode()
        finally:
            self._listeners.discard(changed)

    def _pace_ms(self) -> int:
        return max(_PACE_MS, _PACE_MS_A_PAGE * len(self._listeners))

    async def _look(self) -> None:
        self._told = await self._state()
        while self._listeners:
            await asyncio.sleep(_LOOK_EVERY_S)
            state = await self._state()
            if state != self._told:
                self._told = state
                self.number += 1
                for listener in self._listeners:
                    listener.set()

    async def _state(self) -> str:
        """Return a text that changes whenever something that a page shows does."""
        now = {} if self._site.live is None else self._site.live.now()
        policies = {
            name: (one.phase, one.detail, one.steps_done, one.engine, one.ready_groups, one.paused, len(one.problems))
            for name, one in now.items()
        }
        try:
            last = await self._site.store.last_span()
        except LightningError:
            last = -1  # the page itself will say that the store cannot be read
        return json.dumps([last, policies])


class SharedPages:
    """Renderings that open pages share if they ask for the same thing within a second."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[float, asyncio.Task[Response]]] = {}

    async def get(self, address: str, make: Callable[[], Coroutine[Any, Any, Response]]) -> Response:
        """Return what ``make`` returned for this address less than a second ago, or what it returns now."""
        now = time.monotonic()
        self._made = {one: made for one, made in self._made.items() if made[0] > now - _SHARED_FOR_S}
        if address not in self._made:
            self._made[address] = now, asyncio.create_task(make(), name="dashboard page")
        # A browser that disconnects must not cancel the page for the others.
        return await asyncio.shield(self._made[address][1])


class EventStream:
    """A response that streams events until the browser disconnects."""

    def __init__(self, updates: LiveUpdates) -> None:
        self._updates = updates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writing = asyncio.create_task(self._write(send))
        try:
            while (await receive())["type"] != "http.disconnect":
                pass
        finally:
            writing.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await writing

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEAD})
        async with contextlib.aclosing(self._updates.events()) as events:  # pyright: ignore[reportArgumentType]
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})

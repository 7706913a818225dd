"""A stream that the caller reads through us; its span ends when the stream ends, however it ends.

The ``Stream`` object stays the caller's own: only the iterator inside it is replaced. A stream that is left in the
middle is noticed when it is closed or when nobody holds it any more.
"""

from __future__ import annotations

import time
import weakref
from typing import Any

from lightning_instrumentation.failures import guarded
from lightning_instrumentation.later import do_later
from lightning_instrumentation.openai.call import ChatCall


class _Tap:
    def __init__(self, iterator: Any, call: ChatCall) -> None:
        self._iterator = iterator
        self._call = call

    def take(self, chunk: Any) -> bool:
        """Record a chunk; False where it is none of the caller's business."""
        return guarded("stream-chunk", self._call.add_chunk, chunk) is not False

    def finish(self, error: BaseException | None = None) -> None:
        self._call.stream_ended(error)


class SyncTap(_Tap):
    def __iter__(self) -> SyncTap:
        return self

    def __next__(self) -> Any:
        while True:
            try:
                chunk = next(self._iterator)
            except StopIteration:
                self.finish()
                raise
            except BaseException as error:
                self.finish(error)
                raise
            if self.take(chunk):
                return chunk


class AsyncTap(_Tap):
    def __aiter__(self) -> AsyncTap:
        return self

    async def __anext__(self) -> Any:
        while True:
            try:
                chunk = await self._iterator.__anext__()
            except StopAsyncIteration:
                self.finish()
                raise
            except BaseException as error:
                self.finish(error)
                raise
            if self.take(chunk):
                return chunk


def tap(stream: Any, call: ChatCall) -> None:
    iterator = stream._iterator
    stream._iterator = AsyncTap(iterator, call) if hasattr(iterator, "__anext__") else SyncTap(iterator, call)
    weakref.finalize(stream, _forgotten, call)


def _forgotten(call: ChatCall) -> None:
    """Run by the garbage collector, and at the end of the program."""
    if not call.has_ended:
        do_later(call.stream_forgotten, time.time_ns())


def closed(stream: Any) -> None:
    """The caller has closed a stream, read to its end or not."""
    iterator = getattr(stream, "_iterator", None)
    if isinstance(iterator, _Tap):
        iterator.finish()

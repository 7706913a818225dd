"""``with lightning.uncaptured():``: what happens inside is as if this client were not there.

OpenTelemetry's suppress key is not that: other instrumentations set it around the very calls that they record.
"""

from __future__ import annotations

from dataclasses import replace
from types import TracebackType

from lightning_instrumentation.scope import current, entered


class Uncaptured:
    """A block of code; see ``uncaptured``."""

    __slots__ = ("_body",)

    def __init__(self) -> None:
        self._body: entered | None = None

    def __enter__(self) -> Uncaptured:
        if self._body is not None:
            raise RuntimeError("this block is entered already; call lightning.uncaptured() anew for every block")
        self._body = entered(replace(current(), uncaptured=True))
        self._body.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._body is not None:
            self._body.__exit__(kind, error, traceback)
            self._body = None

    async def __aenter__(self) -> Uncaptured:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)


def uncaptured() -> Uncaptured:
    """Leave a block of code alone: ``with`` or ``async with``.

    Model calls inside go where they always went, whoever claims their agent, with nothing added; they, tools and agents
    leave no span. It reaches into threads and tasks that are started inside. Rollouts and rewards are still recorded:
    these you report yourself. Calls whose base URL is the gateway's own are answered, and recorded, there.
    """
    return Uncaptured()

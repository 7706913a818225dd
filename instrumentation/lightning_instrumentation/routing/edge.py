"""The edge between a library and us: how a hook waits for the daemon before a call, and how it refuses one.

The caller notices nothing there that their library might not do by itself: a wait within their own timeout, which
blocks no event loop, and the library's own connection error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from lightning_instrumentation.access.patience import AT_ONCE, UNTOLD, Patience, be_patient, off_loop, shortest
from lightning_instrumentation.access.proof import BUSY_S, PROOF_S
from lightning_instrumentation.failures import failures
from lightning_instrumentation.routing.hosts import HostTrust
from lightning_instrumentation.routing.router import GatewayUnprovenError
from lightning_instrumentation.runtime import Runtime, runtime
from lightning_instrumentation.scope import current_agent
from lightning_instrumentation.wire.call import current_call

if TYPE_CHECKING:
    from types import TracebackType


class Edge:
    """Surrounds a hook's own work before a call is sent: ``with``, or ``async with`` in a coroutine.

    Args:
        url: where the caller sends the call; an object whose ``str`` is the URL.
        timeout: the caller's time limits, in the form of their library.
        refused: returns the library's connection error with a sentence as its message.
    """

    __slots__ = ("_before", "_refused", "_timeout", "url")

    def __init__(self, url: Any, timeout: Any, refused: Callable[[str], Exception]) -> None:
        self.url = url
        self._timeout = timeout
        self._refused = refused
        self._before = UNTOLD

    def __enter__(self) -> None:
        self._before = be_patient(Patience(self._timeout))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        be_patient(self._before)
        if isinstance(error, GatewayUnprovenError):
            raise self._refused(str(error)) from error.__cause__

    async def __aenter__(self) -> None:
        patience = AT_ONCE
        started = runtime()
        # If an outer hook has begun the call, that hook has already waited.
        if started is not None and current_call() is None:
            try:
                patience = await _met(started, str(self.url), shortest(self._timeout))
            except Exception as error:
                failures.note("route", "lightning could not ask the daemon; the agent goes on", error=error)
        self._before = be_patient(patience)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


async def _met(started: Runtime, url: str, limit_s: float) -> Patience:
    """Wait, off the event loop, for what a call needs from the daemon (selection and proof); return the outcome."""
    router = started.router
    most = BUSY_S
    if started.hosts.trust(url) is not HostTrust.DAEMON:
        if router.routes_nothing():
            return AT_ONCE
        agent = current_agent()
        asked = partial(router.policy_of, None if agent is None else agent.name, limit_s)
        if (asked() if router.has_answer() else await off_loop(asked)) is None:
            return AT_ONCE
        most = PROOF_S
    if router.access.is_due():
        try:
            await off_loop(partial(router.access.opened, min(most, limit_s)))
        except Exception as error:
            return Patience(0.0, met=True, error=error)
    return Patience(0.0, met=True)

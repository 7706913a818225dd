"""Engine endpoints: one engine, or several replicas that serve the same policies."""

from collections.abc import Collection, Mapping
from typing import Protocol, runtime_checkable


class EngineEndpoint(Protocol):
    """The address of an engine; base URL and headers may change when it is restarted."""

    @property
    def base_url(self) -> str:
        """Return the base URL. Raises EngineError while there is none."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Credentials for every request. Raises EngineError while there is no engine."""
        ...

    async def ready(self, timeout_s: float) -> None:
        """Return when the engine answers requests.

        Raises:
            EngineError: it does not within the time, or never will.
        """
        ...


@runtime_checkable
class EngineChoice(Protocol):
    """Load balancing over engines that serve the same policies; each request is assigned one."""

    async def ready(self, timeout_s: float) -> None:
        """Return when at least one engine answers requests.

        Raises:
            EngineError: none does within the time, or ever will.
        """
        ...

    def begin(self, avoid: Collection[EngineEndpoint], conversation: str | None = None) -> EngineEndpoint:
        """Return the engine for a request, one in ``avoid`` only if there is no other; ``end`` must follow.

        Args:
            conversation: the conversation that the request continues; its requests get the same engine if possible.

        Raises:
            EngineError: none of the engines is ready any longer.
        """
        ...

    def end(self, endpoint: EngineEndpoint) -> None:
        """Mark the request that ``begin`` chose ``endpoint`` for as ended; call it once."""
        ...


class OnlyEngine:
    """The trivial choice among a single engine."""

    def __init__(self, endpoint: EngineEndpoint) -> None:
        self._endpoint = endpoint

    async def ready(self, timeout_s: float) -> None:
        await self._endpoint.ready(timeout_s)

    def begin(self, avoid: Collection[EngineEndpoint], conversation: str | None = None) -> EngineEndpoint:
        return self._endpoint

    def end(self, endpoint: EngineEndpoint) -> None: ...

"""Where calls are answered: one engine, or several that serve the same."""

from collections.abc import Collection, Mapping
from typing import Protocol, runtime_checkable


class EngineEndpoint(Protocol):
    """Where an engine is; both may change when it is restarted."""

    @property
    def base_url(self) -> str:
        """Raises EngineError while there is none."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Credentials for every request. Raises EngineError while there is no engine."""
        ...

    async def ready(self, timeout_s: float) -> None:
        """Return when it answers requests.

        Raises:
            EngineError: it does not within the time, or never will.
        """
        ...


@runtime_checkable
class EngineChoice(Protocol):
    """Engines that serve the same, of which every request gets one."""

    async def ready(self, timeout_s: float) -> None:
        """Return when one of them answers requests.

        Raises:
            EngineError: none does within the time, or ever will.
        """
        ...

    def begin(self, avoid: Collection[EngineEndpoint], conversation: str | None = None) -> EngineEndpoint:
        """Return the engine for a request, one of ``avoid`` only where there is no other; ``end`` has to follow.

        Args:
            conversation: what the request goes on with; such requests get the same engine where that is possible.

        Raises:
            EngineError: none of them is ready any longer.
        """
        ...

    def end(self, endpoint: EngineEndpoint) -> None:
        """The request that ``begin`` chose it for has ended; once."""
        ...


class OnlyEngine:
    """The choice where there is none."""

    def __init__(self, endpoint: EngineEndpoint) -> None:
        self._endpoint = endpoint

    async def ready(self, timeout_s: float) -> None:
        await self._endpoint.ready(timeout_s)

    def begin(self, avoid: Collection[EngineEndpoint], conversation: str | None = None) -> EngineEndpoint:
        return self._endpoint

    def end(self, endpoint: EngineEndpoint) -> None: ...

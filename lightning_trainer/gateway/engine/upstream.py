"""HTTP to the engine, or to several replicas that serve the same policies: requests are held while it starts, and
retried if it was gone.

A request is retried only if no byte of an answer has gone to the caller, on another engine if there is one; tokens that
a dying engine had sampled are lost with it, and no caller saw them.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from functools import cached_property, partial
from typing import Protocol, runtime_checkable

import aiohttp
import orjson

from lightning_trainer.errors import EngineError
from lightning_trainer.gateway.engine.conversation import Conversation
from lightning_trainer.gateway.engine.response import EngineResponse
from lightning_trainer.gateway.engine.sse import HEADER


class EngineEndpoint(Protocol):
    """The address of an engine; base URL and headers may change when it is restarted."""

    @property
    def base_url(self) -> str:
        """Return the base URL. Raises EngineError while there is none."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Return the credentials for every request. Raises EngineError while there is no engine."""
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


logger = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 5.0
_KEEP_ALIVE_S = 4.0
"""Less than the engine's own 5 s, so that it does not close a connection that is just being reused."""
_RETRY_PAUSE_S = 0.2
_DROPPED_TRIES = 2
"""If the engine dies twice on a request, the request may be what kills it."""


class Upstream:
    """An HTTP client of the engine with a connection pool.

    Args:
        engine: one engine, or a choice of several that serve the same policies.
        queue_timeout_s: how long a request waits for an engine that is not ready.
        silence_timeout_s: how long the engine may send nothing in the middle of an answer.
        connections: maximum number of open connections.
    """

    def __init__(
        self,
        engine: EngineEndpoint | EngineChoice,
        *,
        queue_timeout_s: float = 180.0,
        silence_timeout_s: float = 600.0,
        connections: int = 520,
    ) -> None:
        self._engines: EngineChoice = engine if isinstance(engine, EngineChoice) else OnlyEngine(engine)
        self._queue_timeout_s = queue_timeout_s
        self._silence_timeout_s = silence_timeout_s
        self._connections = connections

    async def close(self) -> None:
        """Close the connections to the engines."""
        await self._client.close()

    async def ready(self, timeout_s: float | None = None) -> None:
        """Return when a request would be sent at once; without a time, wait for as long as a request does.

        Raises:
            EngineError: it would not within the time, or ever.
        """
        await self._engines.ready(self._queue_timeout_s if timeout_s is None else timeout_s)

    async def open(
        self,
        path: str,
        body: bytes,
        conversation: Conversation | None = None,
        *,
        queue_timeout_s: float | None = None,
    ) -> EngineResponse:
        """Send a request and return its response with the body still unread; the caller must close it.

        Args:
            queue_timeout_s: how long it waits for an engine that is not ready; None: as long as all other requests.

        Raises:
            EngineError: the engine is not ready, or died on this request.
        """
        return await self._send("POST", path, body, conversation, queue_timeout_s=queue_timeout_s)

    async def complete(
        self,
        path: str,
        body: bytes,
        conversation: Conversation | None = None,
        *,
        queue_timeout_s: float | None = None,
    ) -> EngineResponse:
        """Send a request and return its response, read to the end; ``queue_timeout_s``: as above.

        Raises:
            EngineError: the engine is not ready, or died on this request.
        """
        return await self._send("POST", path, body, conversation, whole=True, queue_timeout_s=queue_timeout_s)

    async def live_version(self, policy: str) -> int | None:
        """Return the policy's live version; None if the engine does not report it."""
        try:
            response = await self._send(
                "GET", f"/lightning/version?policy={policy}", None, whole=True, queue_timeout_s=2.0
            )
            version = orjson.loads(response.body or b"").get("version") if response.is_success else None
        except (EngineError, ValueError, AttributeError):
            return None
        return version if isinstance(version, int) else None

    @cached_property
    def _client(self) -> aiohttp.ClientSession:
        """Return the client, created on the first request because it belongs to the running event loop."""
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._connections, keepalive_timeout=_KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=_CONNECT_TIMEOUT_S, sock_read=self._silence_timeout_s
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,  # the engine is on loopback: a proxy from the environment must not see prompts
        )

    async def _send(
        self,
        method: str,
        path: str,
        body: bytes | None,
        conversation: Conversation | None = None,
        *,
        whole: bool = False,
        queue_timeout_s: float | None = None,
    ) -> EngineResponse:
        patience_s = self._queue_timeout_s if queue_timeout_s is None else queue_timeout_s
        give_up = time.monotonic() + patience_s
        dropped = 0
        failed: list[EngineEndpoint] = []
        while True:
            await self._engines.ready(max(0.0, give_up - time.monotonic()))
            try:
                failed.append(engine := self._engines.begin(failed, conversation and conversation.key))
                return await self._once(engine, method, path, body, conversation, whole)
            # The engine is gone, although it may have reported ready a moment ago.
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, EngineError) as error:
                cause: Exception = error
            except TimeoutError as error:
                raise EngineError(f"the engine has been silent for too long ({type(error).__name__})") from error
            except aiohttp.ClientError as error:
                dropped += 1
                if dropped >= _DROPPED_TRIES:
                    raise EngineError(f"the engine dropped the request {dropped} times: {error}") from error
                give_up = time.monotonic() + patience_s  # it was up until now, however long the request has run
                cause = error
            if time.monotonic() + _RETRY_PAUSE_S >= give_up:
                raise EngineError(f"the engine has not been reachable for {patience_s:.0f} s: {cause}") from cause
            logger.warning("the engine is not reachable (%s); the request waits", cause)
            await asyncio.sleep(_RETRY_PAUSE_S)

    async def _once(
        self,
        engine: EngineEndpoint,
        method: str,
        path: str,
        body: bytes | None,
        conversation: Conversation | None,
        whole: bool,
    ) -> EngineResponse:
        ended = partial(self._engines.end, engine)
        try:
            headers = {**engine.headers, "content-type": "application/json", "accept-encoding": "identity", HEADER: "1"}
            if conversation is not None:
                headers |= conversation.headers
            url = engine.base_url.rstrip("/") + path
            # Redirects are not followed: credentials and prompts go only to the engine.
            answer = await self._client.request(method, url, data=body, headers=headers, allow_redirects=False)
            if not whole and 200 <= answer.status < 300:
                return EngineResponse(answer, ended=ended)
            read = await answer.read()
        except BaseException:
            ended()
            raise
        ended()
        return EngineResponse(answer, read)

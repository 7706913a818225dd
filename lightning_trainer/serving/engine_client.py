"""The HTTP client of a running engine, wherever its process runs; it sends the token of that life of the engine.

Invariant: no caller waits for an engine that has ended. Loading weights has no time limit of its own, because the
running generations that it waits for may have none; a request is abandoned when the process ends.
"""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import httpx

from lightning_trainer.errors import EngineError, PublicationError
from lightning_trainer.serving.publication import Publication, PublicationReport
from lightning_trainer.serving.settings import EngineSettings

_REQUEST_TIMEOUT_S = 60.0


class WeightTransport(Protocol):
    """Brings a publication's file to the place where one life of an engine reads it, which depends on its machine.

    The result is always a file in the shared memory of the engine's machine, which the engine checks, loads, and proves
    like any other (``serving.host.weights``). An adapter's file contains only the adapter.
    """

    async def bring(self, publication: Publication) -> Publication:
        """Return the publication with the path that the engine reads; send the file there unless it was sent before.

        Raises:
            EngineError: the engine's machine cannot be reached, or has no room.
            PublicationError: the file cannot be read.
        """
        ...

    async def settle(self, publication: Publication, *, served: bool) -> None:
        """Note whether the publication is served; copies that are no longer needed may be removed."""
        ...


class SharedMemoryFile:
    """An engine on the trainer's machine reads the same file that the trainer wrote."""

    async def bring(self, publication: Publication) -> Publication:
        """Return the publication unchanged: its file is in place already."""
        return publication

    async def settle(self, publication: Publication, *, served: bool) -> None:
        """Do nothing: there are no copies, and the trainer's file is the trainer's to remove."""


class Engine(ABC):
    """One life of an engine: ``start``, ``ready``, use, ``stop``. It cannot be started twice."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.exited: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Resolved when the process has ended, with the reason in one sentence."""
        self.killed = False
        """Whether it was killed other than by ``stop``: by a user, or by the system when memory ran out."""
        self.node: str | None = None
        """The address of its node, if that is not this machine."""
        self._transport: WeightTransport = SharedMemoryFile()
        self._client: httpx.AsyncClient | None = None
        self._base_url = ""
        self._authorization: Mapping[str, str] = {}

    @abstractmethod
    async def start(self) -> None:
        """Start the process and return; ``ready`` waits for it.

        Raises:
            EngineError: it cannot be started.
        """

    @abstractmethod
    async def ready(self, timeout_s: float) -> None:
        """Wait until the engine answers requests.

        Raises:
            EngineError: it ended, or takes longer than ``timeout_s``.
        """

    @abstractmethod
    async def stop(self) -> None:
        """End the process and everything it started; returns when nothing is left. Can be called again."""

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """Return the id of the engine's process on its own machine; None if it has not started."""
        ...

    @property
    def base_url(self) -> str:
        """Return the engine's base URL.

        Raises:
            EngineError: it is not listening yet, or no longer.
        """
        if self._client is None or self.exited.done():
            raise EngineError("the engine is not running")
        return self._base_url

    @property
    def headers(self) -> Mapping[str, str]:
        """Return the headers that every request to the engine must carry."""
        return self._authorization

    async def bring(self, publication: Publication) -> None:
        """Transfer a publication's file to the engine's machine ahead of ``publish``, while the engine keeps serving.

        Raises:
            EngineError: the engine ended.
        """
        await self._while_alive(self._transport.bring(publication), "took no weights")

    async def publish(self, publication: Publication) -> PublicationReport:
        """Load new weights; the report says whether they are served.

        Raises:
            EngineError: the engine ended, or gave up because none of its weights are proven.
        """
        brought = await self._while_alive(self._transport.bring(publication), "took no weights")
        answer = await self._request("POST", "/lightning/weights", brought.to_json(), timeout_s=None)
        report = PublicationReport.from_json(answer)
        await self._transport.settle(publication, served=report.accepted)
        return report

    async def sleep(self, level: int) -> None:
        """Release GPU memory until ``wake``; meanwhile requests wait in the engine, or are held before they reach it.

        Raises:
            EngineError: the engine ended.
            PublicationError: running requests did not end.
        """
        await self._request("POST", f"/lightning/sleep/{level}", timeout_s=None)

    async def wake(self) -> None:
        """Take the memory back and serve the same versions as before.

        Raises:
            EngineError: the engine ended, or its weights are not the proven ones.
        """
        await self._request("POST", "/lightning/wake", timeout_s=600)

    async def hold(self, publication: Publication) -> PublicationReport:
        """Load an old adapter next to the live one, for requests that name its version (``VERSION_HEADER``).

        Raises:
            EngineError: the engine ended.
            PublicationError: it serves no adapters.
        """
        brought = await self._while_alive(self._transport.bring(publication), "took no weights")
        try:
            return PublicationReport.from_json(await self._request("POST", "/lightning/held", brought.to_json(), 600))
        finally:
            await self._transport.settle(publication, served=False)  # the engine keeps its own copy

    async def drop(self, policy: str, version: int) -> None:
        """Unload an adapter that ``hold`` loaded, once no request runs on it."""
        await self._request("DELETE", f"/lightning/held/{policy}/{version}")

    async def score(
        self, token_ids: Sequence[Sequence[int]], policy: str | None = None
    ) -> tuple[tuple[float, ...], ...]:
        """Return ``log p(t_i | t_<i)`` for ``i >= 1`` of each sequence, in nats.

        Args:
            policy: the policy whose live version scores; the first one by default.
        """
        body = {"token_ids": [list(ids) for ids in token_ids], "policy": policy or self.settings.policies[0]}
        answer = await self._request("POST", "/lightning/score", body, 600)
        return tuple(tuple(row) for row in answer["logprobs"])

    async def version(self, policy: str | None = None) -> int:
        """Return the live version of a policy (the first one by default)."""
        named = policy or self.settings.policies[0]
        return (await self._request("GET", f"/lightning/version?policy={named}"))["version"]

    def _connect(self, base_url: str, token: str) -> None:
        if self._client is None:
            self._base_url, self._authorization = base_url, {"Authorization": f"Bearer {token}"}
            self._client = httpx.AsyncClient(
                base_url=base_url, headers=self.headers, timeout=_REQUEST_TIMEOUT_S, trust_env=False
            )

    async def _disconnect(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def _request(
        self, method: str, path: str, body: Any = None, timeout_s: float | None = _REQUEST_TIMEOUT_S
    ) -> Any:
        if self._client is None:
            raise EngineError("the engine is not ready; await ready() first")
        if self.exited.done():  # the client may be closed by now, which httpx reports as a bug of its caller
            raise EngineError(f"the engine did not answer {method} {path}: {self.exited.result()}")
        asked = self._client.request(method, path, json=body, timeout=timeout_s)
        try:
            response = await self._while_alive(asked, f"did not answer {method} {path}")
        except httpx.HTTPError as error:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2.0):
                    await asyncio.shield(self.exited)
            cause = self.exited.result() if self.exited.done() else f"{type(error).__name__} {error}".strip()
            raise EngineError(f"the engine did not answer {method} {path}: {cause}") from error
        if response.is_success:
            return response.json()
        message = _error_message(response)
        if response.status_code < 500:
            raise PublicationError(f"the engine refused {method} {path}: {message}")
        raise EngineError(f"the engine failed on {method} {path}: {message}")

    async def _while_alive(self, work: Any, failed: str) -> Any:
        """Return the coroutine's result, unless the process ends first."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task, self.exited), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise EngineError(f"the engine {failed}: {self.exited.result()}")
            return task.result()
        finally:
            task.cancel()


def _error_message(response: httpx.Response) -> str:
    try:
        return response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return f"{response.status_code} {response.text[:200]}"

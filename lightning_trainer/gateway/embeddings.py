"""``POST /embeddings``: proxied to the server that the user configured, else refused in one sentence.

No policy produces embeddings, so they are neither recorded nor trained. None of the caller's headers are forwarded: the
key is the daemon's, from an environment variable that the configuration names.
"""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
from fastapi import APIRouter, Request, Response
from lightning_instrumentation.routing.hosts import on_this_machine

from lightning_trainer.gateway.http_errors import shaped
from lightning_trainer.ingest.http.bodies import BodyTooLargeError, BodyTooSlowError, read_body
from lightning_trainer.ingest.http.rollout_urls import BASES

_TIMEOUT_S = 120.0
_PASSED_HEADERS = ("content-type", "retry-after")


@dataclass(frozen=True, slots=True)
class EmbeddingsServer:
    """The server that computes embeddings."""

    base_url: str
    """With ``/v1``, as OpenAI's clients expect it."""
    key_variable: str | None = None
    """The environment variable that holds its API key; None if it needs none."""


def embeddings_router(server: EmbeddingsServer | None, *, max_body_bytes: int) -> APIRouter:
    """Return the routes, below each of the gateway's base URLs."""
    passing_on = _PassingOn(server, max_body_bytes)
    router = APIRouter(lifespan=passing_on.lifespan)
    for base in BASES:
        router.add_api_route(f"{base}/embeddings", passing_on.embed, methods=["POST"])
    return router


class _PassingOn:
    """Proxies requests to the embeddings server, if one is configured."""

    def __init__(self, server: EmbeddingsServer | None, max_body_bytes: int) -> None:
        self._server = server
        self._max_body_bytes = max_body_bytes
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def lifespan(self, _: object) -> AsyncIterator[None]:
        """Close the connections when the app ends."""
        try:
            yield
        finally:
            if self._session is not None:
                await self._session.close()

    async def embed(self, request: Request) -> Response:
        server = self._server
        if server is None:
            return shaped(
                request,
                404,
                "embeddings are not served here: no policy makes them. Set [gateway] embeddings = "
                '"https://api.openai.com/v1" (or where yours are made) to have them passed on, or give the program '
                "another base URL for them",
            )
        headers = {"content-type": request.headers.get("content-type", "application/json")}
        if server.key_variable is not None:
            key = os.environ.get(server.key_variable)
            if not key:
                sentence = (
                    f"the daemon's environment has no {server.key_variable}, which [gateway] embeddings_key names"
                )
                return shaped(request, 502, sentence)
            headers["authorization"] = f"Bearer {key}"
        try:
            body = await read_body(request.stream(), limit=self._max_body_bytes)
            return await self._answer_of(server, body, headers)
        except BodyTooLargeError as error:
            return shaped(request, 413, str(error))
        except BodyTooSlowError as error:  # is a TimeoutError as well
            return shaped(request, 408, str(error))
        except (aiohttp.ClientError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            return shaped(request, 502, f"the server of embeddings at {server.base_url} did not answer: {reason}")

    async def _answer_of(self, server: EmbeddingsServer, body: bytes, headers: Mapping[str, str]) -> Response:
        url = f"{server.base_url.rstrip('/')}/embeddings"
        # Redirects are not followed: the key goes only to the configured host.
        async with self._connections(server).post(url, data=body, headers=headers, allow_redirects=False) as answer:
            passed = {name: answer.headers[name] for name in _PASSED_HEADERS if name in answer.headers}
            return Response(await answer.read(), answer.status, passed)

    def _connections(self, server: EmbeddingsServer) -> aiohttp.ClientSession:
        # Created on the first request, because it belongs to the running event loop.
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
            self._session = aiohttp.ClientSession(
                timeout=timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=not on_this_machine(server.base_url),
            )
        return self._session

"""Errors from the web framework (404, 405, 401, 422, a bug of ours), in the format that the caller's library prints.

OpenAI's clients read ``{"error": {"message", ...}}``, Anthropic's ``{"type": "error", "error": {...}}``, and OTLP
exporters a Status in the encoding of their request. A base URL that is nearly right is answered with the right one. A
websocket's handshake, which the server takes for an ordinary GET, is answered with a sentence.
"""

import logging
import re
from collections.abc import Mapping

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from lightning_trainer.errors import StoreError
from lightning_trainer.gateway.errors import openai_error
from lightning_trainer.gateway.protocols.anthropic_request import error_body
from lightning_trainer.ingest.http import otlp_answers

logger = logging.getLogger(__name__)

_ANTHROPIC_TAILS = ("/messages/count_tokens", "/messages")
_TAILS = (
    *("/chat/completions", "/completions", "/responses", "/responses/input_tokens", "/embeddings", "/models"),
    *_ANTHROPIC_TAILS,
)
_KEPT = ("responses/", "conversations", "chat/completions/")
"""How routes below ``/v1`` that ask for earlier answers begin."""
_OF_A_PROMPT = ("responses/compact",)
_PLACE = re.compile(r"(/rollouts/.+)?")
_KINDS = {401: "authentication_error", 404: "not_found_error"}
_CODES = {
    401: "invalid_api_key",
    404: "no_such_route",
    405: "method_not_allowed",
    426: "websocket_not_served",
    500: "internal_error",
}
_NO_WEBSOCKETS = (
    "models are called over HTTP here, not over websockets: with OpenAI's client use responses.create in the place of "
    "responses.connect (stream = True sends the events as they come), with its Agents SDK the transport http"
)
_OVER_HTTP = {"upgrade": "HTTP/1.1", "connection": "close"}
"""Headers of a 426 (RFC 9110, section 15.5.22), which some clients, such as Codex, take as the sign to use HTTP."""


def answer_in_the_callers_shape(app: FastAPI) -> None:
    """Make an app's own errors go through :func:`shaped`."""

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        sentence = str(error.detail)
        if error.status_code in (404, 405) and request.headers.get("upgrade", "").lower() == "websocket":
            return shaped(request, 426, _NO_WEBSOCKETS, _OVER_HTTP)
        if error.status_code == 404 and sentence == "Not Found":
            sentence = _no_route(request)
        elif error.status_code == 405:
            allowed = ", ".join(sorted(_allowed(app, request))) or (error.headers or {}).get("allow", "another method")
            sentence = f"{request.url.path} is not called with {request.method}: send {allowed}"
        return shaped(request, error.status_code, sentence, error.headers)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        said = (f"{'.'.join(str(part) for part in one['loc'][1:])}: {one['msg']}" for one in error.errors())
        return shaped(request, 422, "; ".join(said))

    async def failed(request: Request, error: Exception) -> Response:
        # The server logs the traceback; an exception's message may contain other users' data.
        sentence = f"the daemon failed on this request ({type(error).__name__}): a bug of its own, its log says more"
        return shaped(request, 500, sentence)

    async def unstored(request: Request, error: Exception) -> Response:
        return shaped(request, 503, str(error), {"retry-after": "1"})

    async def gone(request: Request, error: Exception) -> Response:
        return Response(status_code=400)  # the client hung up in the middle of a body; not a bug

    app.add_exception_handler(ClientDisconnect, gone)
    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(StoreError, unstored)
    app.add_exception_handler(Exception, failed)


def shaped(request: Request, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error in the format that the sender of the request reads."""
    path = request.scope["path"]
    if path in otlp_answers.PATHS:
        return otlp_answers.refusal(otlp_answers.media_type_of(request.headers), status, sentence, headers)
    body = openai_error(sentence, kind=_kind(status), code=_CODES.get(status))
    if path.endswith(_ANTHROPIC_TAILS) or "anthropic-version" in request.headers:
        body = error_body(status, body)
    return Response(orjson.dumps(body), status, None if headers is None else dict(headers), "application/json")


def _kind(status: int) -> str:
    return "server_error" if status >= 500 else _KINDS.get(status, "invalid_request_error")


def _allowed(app: FastAPI, request: Request) -> set[str]:
    """Return the methods of every route with this path; the framework lists only those of the first one."""
    return {
        method
        for route in app.routes
        if route.matches(request.scope)[0] is not Match.NONE
        for method in getattr(route, "methods", None) or ()
        if method != "HEAD"
    }


def _no_route(request: Request) -> str:
    said = f"there is no route {request.method} {request.url.path} here"
    path = re.sub("/+", "/", request.scope["path"]).rstrip("/")
    root = str(request.base_url).rstrip("/")
    if path.endswith(otlp_answers.TAILS):
        return f"{said}: an exporter's OTEL_EXPORTER_OTLP_ENDPOINT is {root}, and LIGHTNING_ENDPOINT as well"
    tail = next((tail for tail in _TAILS if path.endswith(tail)), None)
    if tail is None and (below := path.partition("/v1/")[2]):
        if below.startswith(_KEPT) and not below.endswith(_OF_A_PROMPT):
            return (
                f"{said}: this gateway keeps no answers and no conversations, so send the whole conversation each time"
            )
        return (
            f"{said}: the gateway serves chat completions, completions, Responses, Messages, embeddings, and the list "
            "of models; give the program another client, with its provider's base URL, for everything else"
        )
    if tail is None:
        return f"{said}; models are called below /v1, spans are sent to /v1/traces, /lightning/status says the rest"
    place = path.removesuffix(tail)
    versions = 0
    while place.endswith("/v1"):
        place, versions = place.removesuffix("/v1"), versions + 1
    # Anthropic's own clients add /v1 themselves; another that calls /messages (Vercel's AI SDK) may not.
    ending = "" if versions and tail in _ANTHROPIC_TAILS else "/v1"
    right = f"{root}{place}{ending}"
    if not _PLACE.fullmatch(place):
        return f"{said}: set the base URL to {root}{ending} or {root}/rollouts/ID{ending}, and nothing else in its path"
    if versions == 0:
        return f"{said}: /v1 is missing in it; set the base URL to {right}"
    if versions > 1:
        return f"{said}: /v1 is {versions} times in it; set the base URL to {right}"
    return f"{said}: models are not called so; the gateway's routes are in docs/gateway.md"

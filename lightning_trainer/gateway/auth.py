"""Authentication: the bearer of the token is admitted (constant-time comparison); with ``token = "none"``, anyone who
reaches the port.

The configuration refuses ``"none"`` beyond loopback. OpenAI and Anthropic clients send the token as their ``api_key``,
as a bearer token and as ``x-api-key`` respectively; Langfuse's clients send it as the password (their secret key); our
own client sends it along with whatever key a program has.
"""

import base64
import binascii
import hmac
from collections.abc import Awaitable, Callable

from fastapi import HTTPException, Request
from lightning_instrumentation.access.proof import TOKEN_HEADER


def require_token(token: str | None) -> Callable[[Request], Awaitable[None]]:
    """Return a dependency that lets a request in or answers 401; for ``Depends`` on any router."""
    expected = None if token is None else token.encode()

    # Async, because FastAPI runs a plain function in a thread for every request.
    async def check(request: Request) -> None:
        if expected is None:
            return
        scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
        given = (
            credentials.strip() if scheme.lower() == "bearer" else "",
            _password(credentials) if scheme.lower() == "basic" else "",
            request.headers.get("x-api-key", ""),
            request.headers.get(TOKEN_HEADER, ""),
        )
        if not any(hmac.compare_digest(one.encode(), expected) for one in given):
            raise HTTPException(
                401,
                "the daemon's token is missing or wrong: `lightning-trainer token` prints it; send it as "
                "`Authorization: Bearer TOKEN` (OpenAI and Anthropic clients: as api_key)",
                headers={"www-authenticate": "Bearer"},
            )

    return check


def _password(credentials: str) -> str:
    """Return the password of HTTP basic authentication (RFC 7617); empty if it cannot be read."""
    try:
        return base64.b64decode(credentials.strip(), validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""

"""Who may come in: a bearer token, compared in constant time; without one configured, whoever can reach the port.

The configuration refuses to listen beyond loopback without a token. OpenAI and Anthropic clients send it as their
``api_key``, one as a bearer token and one as ``x-api-key``.
"""

import hmac
from collections.abc import Awaitable, Callable

from fastapi import HTTPException, Request


def require_token(token: str | None) -> Callable[[Request], Awaitable[None]]:
    """Return a dependency that lets a request in or answers 401; for ``Depends`` on any router."""
    expected = None if token is None else token.encode()

    # Async, since FastAPI sends a plain function to a thread on every request.
    async def check(request: Request) -> None:
        if expected is None:
            return
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        given = bearer.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
        if not hmac.compare_digest(given.encode(), expected):
            raise HTTPException(
                401,
                "the daemon's token is missing or wrong: send it as `Authorization: Bearer TOKEN` (OpenAI and "
                "Anthropic clients: as api_key)",
                headers={"www-authenticate": "Bearer"},
            )

    return check

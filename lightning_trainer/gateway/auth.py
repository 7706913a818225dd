"""Who may come in: a bearer token, compared in constant time; without one configured, whoever can reach the port.

The configuration refuses to listen beyond loopback without a token. An OpenAI client sends it as its ``api_key``.
"""

import hmac
from collections.abc import Callable

from fastapi import HTTPException, Request


def require_token(token: str | None) -> Callable[[Request], None]:
    """Return a dependency that lets a request in or answers 401; for ``Depends`` on any router."""
    expected = None if token is None else token.encode()

    def check(request: Request) -> None:
        if expected is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), expected):
            raise HTTPException(
                401,
                "the daemon's token is missing or wrong: send it as `Authorization: Bearer TOKEN` (an OpenAI client: "
                "as api_key)",
                headers={"www-authenticate": "Bearer"},
            )

    return check

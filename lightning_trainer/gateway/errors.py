"""Errors in the shape that OpenAI's clients expect: ``{"error": {"message", "type", "param", "code"}}``."""

from collections.abc import Mapping
from typing import Any


def openai_error(message: str, *, kind: str, code: str | None = None, param: str | None = None) -> Mapping[str, Any]:
    """Return an error's body."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


class RefusalError(Exception):
    """A request that is refused; the caller reads the message."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = openai_error(message, kind=kind, code=code, param=param)
        self.headers = {} if retry_after_s is None else {"retry-after": str(retry_after_s)}


def unavailable(message: str, *, retry_after_s: int = 5) -> RefusalError:
    """Return a 503: the request is fine and may be retried."""
    return RefusalError(503, message, kind="service_unavailable", code="unavailable", retry_after_s=retry_after_s)


def made_again() -> RefusalError:
    """Return a 409: the caller made this call again, so it no longer waits for this answer."""
    return RefusalError(409, "this call was made again; only the later try is answered", code="made_again")

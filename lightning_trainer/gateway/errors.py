"""Errors as an OpenAI client expects them: ``{"error": {"message", "type", "param", "code"}}``."""

from collections.abc import Mapping
from typing import Any


def openai_error(message: str, *, kind: str, code: str | None = None, param: str | None = None) -> Mapping[str, Any]:
    """Return an error's body."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


class RefusalError(Exception):
    """A request that ends here; the message is what the caller reads."""

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
    """503: nothing is wrong with the request, it may come again."""
    return RefusalError(503, message, kind="service_unavailable", code="unavailable", retry_after_s=retry_after_s)


def made_again() -> RefusalError:
    """409: nobody should be waiting for this answer any longer."""
    return RefusalError(409, "this call was made again; only the later try is answered", code="made_again")

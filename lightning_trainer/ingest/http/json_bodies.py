"""Small JSON bodies, often written by hand: read with a limit, refused with one sentence."""

import json
from typing import TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError

from lightning_trainer.ingest.http.bodies import BodyTooLargeError, BodyTooSlowError, read_body

_MAX_BODY_BYTES = 2**20
Body = TypeVar("Body", bound=BaseModel)


class JsonBodyError(Exception):
    """A request that is refused; the caller reads the message."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status

    def response(self) -> JSONResponse:
        """Return the refusal as an HTTP answer with the error's status."""
        return error_response(self.status, str(self))


async def read_json(request: Request, model: type[Body]) -> Body:
    """Read a request's body.

    Raises:
        JsonBodyError: it is not declared as JSON (415), is not JSON (400), is too large (413) or too slow (408), or has
            a wrong field (422).
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        # Required because a web page may post any other content type to a loopback port without a CORS preflight.
        raise JsonBodyError(415, "send the body as application/json")
    try:
        raw = await read_body(request.stream(), limit=_MAX_BODY_BYTES)
        return model.model_validate(json.loads(raw))
    except BodyTooLargeError as error:
        raise JsonBodyError(413, str(error)) from error
    except BodyTooSlowError as error:
        raise JsonBodyError(408, str(error)) from error
    except ValidationError as error:
        raise JsonBodyError(422, _sentence(error)) from error
    except (ValueError, RecursionError) as error:
        raise JsonBodyError(400, f"the body is not JSON: {error}") from error


def error_response(status: int, sentence: str, *, retry_after_s: int | None = None) -> JSONResponse:
    """Return an error as JSON with one sentence."""
    headers = None if retry_after_s is None else {"retry-after": str(retry_after_s)}
    return JSONResponse({"error": {"message": sentence}}, status_code=status, headers=headers)


def _sentence(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(str(part) for part in detail['loc']) or 'body'}: {detail['msg']}" for detail in error.errors()
    )

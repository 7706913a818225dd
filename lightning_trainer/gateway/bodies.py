"""JSON bodies, read and written without a change: an integer beyond 64 bits keeps its digits."""

import json
from typing import Any

import orjson
from lightning_instrumentation.wire.decoding import read_json

from lightning_trainer.gateway.errors import RefusalError

_MAY_BE_DEEP = 200


def read_body_object(raw: bytes) -> dict[str, Any]:
    """Read a request body.

    Raises:
        RefusalError: it is not a JSON object (400).
    """
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise RefusalError(400, f"the body is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(body, dict):
        raise RefusalError(400, f"the body is a JSON {type(body).__name__}, not an object", code="invalid_json")
    try:
        if raw.count(b"[") + raw.count(b"{") > _MAY_BE_DEEP:
            orjson.dumps(body)  # the parser accepts four times the nesting that the encoder does
        return read_json(raw)
    except (TypeError, RecursionError) as error:
        raise RefusalError(400, f"the body is nested too deeply: {error}", code="invalid_json") from error


def write_json(value: Any) -> bytes:
    """Return what JSON has a form for as JSON."""
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer beyond 64 bits
        return json.dumps(value, separators=(",", ":")).encode()

"""What the caller asked, and what the engine is asked in its stead: the same, plus token ids and log-probabilities.

A field is added only where the caller left it out or switched it off. A field that the caller got wrong is passed on,
so that the engine refuses it as it would have without us.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from lightning_trainer.gateway.errors import RefusalError


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat completion request."""

    body: Mapping[str, Any]
    """As the caller sent it."""
    model: str
    """As the caller named it; the response names it so as well."""
    version: int | None
    """The policy version that the caller insists on (``POLICY@vN``)."""
    asked_token_ids: bool
    asked_logprobs: bool
    choices: int

    def upstream(self, served_name: str) -> bytes:
        """Return the engine's request body."""
        body = {**self.body, "model": served_name}
        if not self.asked_token_ids and body.get("return_token_ids") in (None, False):
            body["return_token_ids"] = True
        # `top_logprobs` without `logprobs` is the caller's mistake: the engine says so.
        if not self.asked_logprobs and body.get("logprobs") in (None, False) and not body.get("top_logprobs"):
            body["logprobs"] = True
            body["top_logprobs"] = 0
        return orjson.dumps(body)


def read_request(raw: bytes, *, policy: str) -> ChatRequest:
    """Read a request body.

    Raises:
        RefusalError: it is not a JSON object (400), or names a model that is not served here (404).
    """
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise RefusalError(400, f"the body is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(body, dict):
        raise RefusalError(400, f"the body is a JSON {type(body).__name__}, not an object", code="invalid_json")
    model = body.get("model")
    if not isinstance(model, str):
        raise RefusalError(400, f"model is {model!r}; name {policy!r}", param="model", code="missing_model")
    count = body.get("n")
    return ChatRequest(
        body=body,
        model=model,
        version=_version(model, policy),
        asked_token_ids=body.get("return_token_ids") is True,
        asked_logprobs=body.get("logprobs") is True,
        choices=count if isinstance(count, int) and count > 0 else 1,
    )


def _version(model: str, policy: str) -> int | None:
    if model == policy:
        return None
    digits = model.removeprefix(f"{policy}@v")
    if digits != model and digits.isascii() and digits.isdigit() and len(digits) <= 18:
        return int(digits)
    raise unknown_model(model, [policy])


def unknown_model(model: str, known: list[str]) -> RefusalError:
    """404 that names what is served."""
    return RefusalError(
        404,
        f"there is no model {model!r} here; known models: {', '.join(known)}",
        param="model",
        code="model_not_found",
    )

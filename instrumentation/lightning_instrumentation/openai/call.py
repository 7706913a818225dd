"""One request of the openai client, with all its retries, as one call."""

from __future__ import annotations

from typing import Any

from lightning_instrumentation.failures import failures
from lightning_instrumentation.openai import options as of
from lightning_instrumentation.wire import call as wire
from lightning_instrumentation.wire.call import ModelCall

_LIBRARY = "openai"


def begin(client: Any, options: Any) -> tuple[ModelCall, Any] | None:
    """Start the span of a model call and return it with the options to send; None for any other request."""
    api = of.api_of(options)
    if api is None or wire.is_silent():
        return None
    key = getattr(client, "api_key", None)
    begun = wire.begin(
        api,
        of.url_of(client, options),
        of.body_of(options),
        captured_by=_LIBRARY,
        secret=key if isinstance(key, str) and key else None,
    )
    if begun is None:
        return None
    call, headers = begun
    if headers or call.asked:
        options = of.with_additions(client, options, headers, api.additions(call.asked))
    return call, options


def answered(call: ModelCall) -> None:
    """The client has returned: an answer that was read is complete, a stream ends when its body does."""
    if not call.sent:
        failures.note(
            "not-captured:http-client",
            "a call of the openai client went through an HTTP client other than httpx and is recorded without its "
            "answer",
        )
    if not call.under_way:
        call.ended()

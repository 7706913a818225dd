"""Hook in the websockets library: counts and reports model calls over a websocket, which are neither read nor routed.

OpenAI's Responses and Realtime, and Gemini's Live API, hold a conversation on one connection, on which each side sends
only its part. Source: OpenAI API reference, Responses over websockets; Gemini API reference, Live API.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from lightning_instrumentation.failures import failures, guarded
from lightning_instrumentation.hooks import patching
from lightning_instrumentation.runtime import runtime
from lightning_instrumentation.wire.call import is_silent

_ENDINGS = ("/responses", "/realtime", "/live/sessions", ".BidiGenerateContent")
"""Endings of the paths of model calls; every other websocket is the program's own business."""


def wrap(module: Any) -> None:
    """Hook of ``websockets.asyncio.client`` and ``websockets.sync.client``."""
    patching.wrap(module, "connect.__init__" if isinstance(module.connect, type) else "connect", _connect)


def _connect(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # Noted before it is known whether it succeeds: a program whose connections fail makes its calls over HTTP, or none.
    guarded("websocket", _note, args[0] if args else kwargs.get("uri"))
    return wrapped(*args, **kwargs)


def _note(uri: object) -> None:
    path = urlsplit(str(uri)).path.rstrip("/")
    if path.endswith(_ENDINGS) and not is_silent() and runtime() is not None:
        failures.note(
            "not-captured:websocket",
            f"a connection was made to a websocket of {path}, whose model calls are neither captured nor routed: let "
            "the program use HTTP (docs/capture.md)",
        )

"""Detects a request's wire format by the end of its path and the fields of its body."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from lightning_instrumentation.failures import failures
from lightning_instrumentation.wire.api import Api, Json
from lightning_instrumentation.wire.chat import ChatCompletions
from lightning_instrumentation.wire.completions import Completions
from lightning_instrumentation.wire.messages_api import Messages
from lightning_instrumentation.wire.native.bedrock import Converse
from lightning_instrumentation.wire.native.cohere import CohereChat
from lightning_instrumentation.wire.native.gemini import Gemini
from lightning_instrumentation.wire.native.ollama import OllamaChat, OllamaGenerate
from lightning_instrumentation.wire.responses import Responses


class NotCaptured(Api):
    """Model calls in formats that are not read here: each is counted, and the first is reported."""

    def __init__(self, name: str, what: str, within: str = "") -> None:
        self.name = name
        self.within = within
        self._what = what

    def fits(self, body: Json) -> bool:
        """Count the call and report the first; always False, so that it is not recorded."""
        failures.note(
            f"not-captured:{self.name}",
            f"a call went through {self._what}, which is not captured: let the program call an API that is "
            "(docs/capture.md), or the daemon's gateway",
        )
        return False


# The longer ending first: every chat path also ends like a completion's.
_BY_ENDING: tuple[tuple[str, Api], ...] = (
    ("/chat/completions", ChatCompletions()),
    ("/completions", Completions()),
    ("/responses", Responses()),
    ("/v1/messages", Messages()),
    (":generateContent", Gemini()),
    (":streamGenerateContent", Gemini()),
    ("/api/chat", OllamaChat()),
    ("/api/generate", OllamaGenerate()),
    ("/v2/chat", CohereChat()),
    ("/converse", Converse()),
    ("/converse-stream", Converse()),
    ("/responses/compact", NotCaptured("responses-compact", "responses.compact")),
    ("/interactions", NotCaptured("gemini-interactions", "Gemini's Interactions API", within="/v1beta")),
    (":rawPredict", NotCaptured("vertex-raw-predict", "Vertex AI's rawPredict")),
    (":streamRawPredict", NotCaptured("vertex-raw-predict", "Vertex AI's rawPredict")),
    ("/invoke", NotCaptured("bedrock-invoke", "Bedrock's InvokeModel", within="/model/")),
    ("/invoke-with-response-stream", NotCaptured("bedrock-invoke", "Bedrock's InvokeModel", within="/model/")),
)
_ENDINGS = tuple(ending for ending, _ in _BY_ENDING)
_BY_ENDING_ALONE: Mapping[str, Api] = dict(_BY_ENDING)


def ending_of(path: str) -> str | None:
    """Return the ending of a path that has a format."""
    path = path.rstrip("/")
    return next((ending for ending in _ENDINGS if path.endswith(ending)), None)


def api_at(path: str) -> Api | None:
    """Return the format that a path without query implies; None if it implies none."""
    # The hot path for nearly every request of a program. The paths of model calls are few, and recur.
    return _api_at(path) if path.rstrip("/").endswith(_ENDINGS) else None


@lru_cache(maxsize=256)
def _api_at(path: str) -> Api | None:
    ending = ending_of(path)
    api = None if ending is None else _BY_ENDING_ALONE[ending]
    return api if api is not None and api.within in path else None


def api_of(path: str, body: Any) -> Api | None:
    """Return the format of a request; None if it is not a model call."""
    api = api_at(path)
    return api if api is not None and isinstance(body, Mapping) and api.fits(body) else None

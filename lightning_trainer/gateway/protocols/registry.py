"""The APIs that callers may use. Two are the engine's own; two are translated to its chat completions and back.

The engine has routes for Responses and Messages as well, but they return no token ids.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from lightning_trainer.gateway.engine.transcript import Transcript
from lightning_trainer.gateway.errors import RefusalError
from lightning_trainer.gateway.protocols import anthropic_request, chat_request, responses_request
from lightning_trainer.gateway.protocols.anthropic_answer import AnthropicAnswer
from lightning_trainer.gateway.protocols.openai_answer import OpenAIAnswer
from lightning_trainer.gateway.protocols.responses_answer import ResponsesAnswer
from lightning_trainer.gateway.request import EngineApi, EngineRequest, engine_request

Read = TypeVar("Read")


class Answer(Protocol):
    """How the engine's answer becomes the caller's: one object per call, for whichever API the caller speaks.

    It turns what the engine sends into the bytes that go out. The transcript gets each document first.
    """

    def whole(self, raw: bytes, document: dict[str, Any]) -> bytes:
        """Return the body for a response, given as the engine sent it and parsed."""
        ...

    def chunk(self, event: bytes, chunk: dict[str, Any]) -> bytes:
        """Return the events for one chunk of a stream, given as the engine sent it and parsed; b"" for none."""
        ...

    def end(self, event: bytes) -> bytes:
        """Return what ends the stream; ``event`` is the engine's own end."""
        ...

    def broken(self, refusal: RefusalError) -> bytes:
        """Return the event that ends a stream after a failure."""
        ...


@dataclass(frozen=True, slots=True)
class Api:
    """One API, in both directions."""

    path: str
    """Below ``/v1``."""
    read: Callable[[dict[str, Any], int | None], EngineRequest]
    """Makes the engine's request from a body and the version that it requires; raises RefusalError."""
    answer: Callable[[dict[str, Any], EngineRequest, Transcript, str], Answer]
    """Called with the caller's body, the engine's request, the transcript, and the engine's name of the model."""
    error_body: Callable[[int, Mapping[str, Any]], Mapping[str, Any]] = lambda status, body: body
    """Converts an error from OpenAI's shape, which is also the engine's, into this API's."""
    count_path: str | None = None
    """Where the tokens of a call's prompt are counted, below ``/v1``; None: nowhere."""
    counted: Callable[[int], Mapping[str, Any]] = lambda tokens: {"input_tokens": tokens}
    """Makes the answer's body from the number of tokens."""


def _openai_answer(_: dict[str, Any], request: EngineRequest, transcript: Transcript, served_name: str) -> Answer:
    return OpenAIAnswer(request, transcript, served_name)


def _anthropic_answer(_: dict[str, Any], request: EngineRequest, transcript: Transcript, __: str) -> Answer:
    # `max_tokens` is set by a rollout's URL, which removes `max_completion_tokens`.
    bound = request.body.get("max_completion_tokens", request.body.get("max_tokens"))
    return AnthropicAnswer(request.model, transcript, bound if isinstance(bound, int) else 0)


def _read_chat(body: dict[str, Any], version: int | None) -> EngineRequest:
    chat_request.refuse_unseen_fields(body)
    asked = engine_request(chat_request.with_system(body), version=version)
    return replace(asked, accommodated=chat_request.without_late_system)


def _read_message(body: dict[str, Any], version: int | None) -> EngineRequest:
    asked = _translated(anthropic_request.chat_body, "msg_")(body, version)
    edited_from = _readable(anthropic_request.edited_from, body)
    return replace(asked, edited_from=edited_from, accommodated=anthropic_request.accommodated)


def _read_response(body: dict[str, Any], version: int | None) -> EngineRequest:
    asked = _translated(responses_request.chat_body, "resp_")(body, version)
    return replace(asked, accommodated=chat_request.without_late_system)


def _translated(
    translate: Callable[[Mapping[str, Any]], dict[str, Any]], id_prefix: str
) -> Callable[[dict[str, Any], int | None], EngineRequest]:
    def read(body: dict[str, Any], version: int | None) -> EngineRequest:
        return engine_request(_readable(translate, body), version=version, id_prefix=id_prefix)

    return read


def _readable(read: Callable[[Mapping[str, Any]], Read], body: Mapping[str, Any]) -> Read:
    try:
        return read(body)
    except (TypeError, AttributeError, LookupError, ValueError) as error:
        raise RefusalError(400, f"a field of the body has a shape that cannot be read: {error}") from error


APIS = (
    Api(
        "/chat/completions",
        read=_read_chat,
        answer=_openai_answer,
    ),
    Api(
        "/completions",
        read=lambda body, version: engine_request(body, version=version, api=EngineApi.COMPLETIONS),
        answer=_openai_answer,
    ),
    Api(
        "/responses",
        read=_read_response,
        answer=lambda body, request, transcript, _: ResponsesAnswer(body, request.model, transcript),
        count_path="/responses/input_tokens",
        counted=lambda tokens: {"object": "response.input_tokens", "input_tokens": tokens},
    ),
    Api(
        "/messages",
        read=_read_message,
        answer=_anthropic_answer,
        error_body=anthropic_request.error_body,
        count_path="/messages/count_tokens",
    ),
)

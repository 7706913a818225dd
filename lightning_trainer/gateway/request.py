"""The caller's request, and the request sent to the engine in its place: the same, plus token ids and logprobs.

A field is added only if the caller left it out or turned it off. A field with an invalid value is passed on, so that
the engine refuses it as it would have without us. One field is never taken from the caller: ``request_id``, from which
the engine makes the response's id. Spans are joined and rewards found by that id, so no caller may choose one or guess
another's.
"""

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import orjson
from lightning_instrumentation import semconv
from lightning_instrumentation.wire.decoding import read_json

from lightning_trainer.gateway.errors import RefusalError


class EngineApi(StrEnum):
    """The two engine routes that return exact token ids."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A call as a request to the engine's API."""

    api: EngineApi
    body: Mapping[str, Any]
    """As the caller sent it, or as translated."""
    model: str
    """The caller's name for the model, which the response repeats."""
    version: int | None
    """The policy version that the caller requires (``POLICY@vN``)."""
    asked_token_ids: bool
    asked_logprobs: bool
    choices: int
    id_prefix: str | None = None
    """Prefix of the response's id if the caller's API is not the engine's; None keeps the engine's id."""
    edited_from: int | None = None
    """Number of prompt tokens from which on the caller wants its context edited, which the gateway does not do; None:
    never."""
    accommodated: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any] | None] | None = None
    """Returns, from a body that the engine refused and its error, the body to retry with; None if the error stands."""

    @property
    def operation(self) -> str:
        """Return the call's operation in the GenAI conventions' terms."""
        return semconv.CHAT if self.api is EngineApi.CHAT else semconv.TEXT_COMPLETION

    def asking(self, sampling: Mapping[str, float]) -> "EngineRequest":
        """Return the request with other sampling parameters, named as in completions (``max_tokens`` ...)."""
        if not sampling:
            return self
        body = {**self.body, **sampling}
        if "max_tokens" in sampling:
            body.pop("max_completion_tokens", None)
        return replace(self, body=body)

    def upstream(self, served_name: str) -> bytes:
        """Return the engine's request body."""
        body = {**self.body, "model": served_name, "request_id": secrets.token_hex(16)}
        if not self.asked_token_ids and body.get("return_token_ids") in (None, False):
            body["return_token_ids"] = True
        if self.api is EngineApi.COMPLETIONS:
            if body.get("logprobs") is None:
                body["logprobs"] = 0  # of the sampled token alone
        # `top_logprobs` without `logprobs` is the caller's mistake, and the engine reports it; with `top_logprobs` null
        # it would give none at all.
        elif body.get("logprobs") in (None, False, True) and not body.get("top_logprobs"):
            body["logprobs"] = True
            body["top_logprobs"] = 0
        return write_json(body)

    def tokenize(self, served_name: str) -> bytes:
        """Return the body for the engine's ``/tokenize`` that renders the prompt of this chat."""
        named = (
            *("messages", "tools", "chat_template", "chat_template_kwargs", "mm_processor_kwargs", "media_io_kwargs"),
            *("add_generation_prompt", "continue_final_message", "add_special_tokens"),
        )
        body = {"model": served_name, **{name: self.body[name] for name in named if name in self.body}}
        # The other fields that the engine passes to the template, in its order of precedence.
        told = {name: self.body[name] for name in ("reasoning_effort", "documents") if self.body.get(name) is not None}
        if told:
            own = body.get("chat_template_kwargs")
            thinking = {"enable_thinking": told["reasoning_effort"] != "none"} if "reasoning_effort" in told else {}
            body["chat_template_kwargs"] = {**thinking, **(own if isinstance(own, Mapping) else {}), **told}
        return write_json(body)

    def instead(self, status: int, raw: bytes | None) -> "EngineRequest | None":
        """Return the request to retry with after an answer of the engine; None if the caller gets that answer."""
        if self.accommodated is None or status != 400:
            return None
        try:
            body = self.accommodated(self.body, orjson.loads(raw or b"")["error"])
        except (orjson.JSONDecodeError, TypeError, KeyError, AttributeError):
            return None
        return None if body is None else replace(self, body=body)


_MAY_BE_DEEP = 200


def read_body_object(raw: bytes) -> dict[str, Any]:
    """Read a request body; integers beyond 64 bits keep their digits.

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
    """Return a value as JSON; integers beyond 64 bits keep their digits."""
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer beyond 64 bits
        return json.dumps(value, separators=(",", ":")).encode()


def engine_request(
    body: dict[str, Any], *, version: int | None, api: EngineApi = EngineApi.CHAT, id_prefix: str | None = None
) -> EngineRequest:
    """Read a body as a request to the engine.

    Args:
        body: with a model that is served here (``policies.ServedPolicies.choose``).
        version: the version that its model name requires.

    Raises:
        RefusalError: it asks for something that cannot be recorded exactly (400).
    """
    count = body.get("n")
    if count is not None and not isinstance(count, int):
        raise RefusalError(400, f"n = {count!r}: send a whole number", param="n")
    if body.get("include_reasoning") not in (None, True):
        raise RefusalError(
            400,
            f"include_reasoning = {body['include_reasoning']!r} is not supported here: the engine then hides "
            "the tokens as well, and none could be recorded; leave it out and ignore the reasoning in the answer",
            param="include_reasoning",
        )
    if api is EngineApi.COMPLETIONS:
        body = _one_prompt(body)
    return EngineRequest(
        api=api,
        body=body,
        model=body["model"],
        version=version,
        asked_token_ids=body.get("return_token_ids") is True,
        asked_logprobs=_asked_logprobs(body, api),
        choices=max(count or 1, 1),
        id_prefix=id_prefix,
    )


def _asked_logprobs(body: Mapping[str, Any], api: EngineApi) -> bool:
    asked = body.get("logprobs")
    return asked is True if api is EngineApi.CHAT else asked is not None


def _one_prompt(body: dict[str, Any]) -> dict[str, Any]:
    if body.get("echo"):
        raise RefusalError(
            400,
            "echo = true is not supported here: send echo = false and put the prompt in front yourself",
            param="echo",
        )
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) > 1:
            raise RefusalError(
                400,
                f"prompt holds {len(prompt)} prompts; a call is recorded with one prompt, so send one call for each",
                param="prompt",
            )
        body = {**body, "prompt": prompt[0]}
    return body


def no_policy() -> RefusalError:
    """Return the 404 of a daemon that only records: a retry would not help."""
    return RefusalError(
        404,
        "this daemon only records: its configuration has no [[policy]], so it serves no model; leave the client's base "
        "URL at your provider (a Python program with our client is recorded all the same; another one sends "
        "OpenTelemetry spans to /v1/traces), or add a [[policy]] and start the daemon again",
        param="model",
        code="model_not_found",
    )


def unknown_model(model: str, known: list[str], unclaimed: str = "") -> RefusalError:
    """Return a 404 that names the served models; ``unclaimed`` says why the caller's agent did not decide."""
    if not known:
        return no_policy()
    return RefusalError(
        404,
        f"there is no model {model!r} here; known models: {', '.join(known)}{unclaimed and f'; {unclaimed}'}",
        param="model",
        code="model_not_found",
    )

"""Which conversation a call goes on with: what the engine keeps sampled ids by, and what a replica is chosen by."""

import hashlib
from dataclasses import dataclass
from typing import Any

import orjson
from lightning_instrumentation import semconv

from lightning_trainer.gateway.caller import Caller
from lightning_trainer.gateway.request import EngineApi, EngineRequest

OWNER_HEADER = "x-lightning-conversation"
_FIRST_MESSAGES = 2
"""A system message and what was asked first."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Calls with equal keys are answered by one replica where that is possible."""

    key: str
    owned: bool
    """Whether the key is an attempt's or a trace's: only then may one call go on with the ids that another sampled."""

    @property
    def headers(self) -> dict[str, str]:
        """What the engine is told of it."""
        return {OWNER_HEADER: self.key} if self.owned else {}


def conversation_of(caller: Caller, request: EngineRequest) -> Conversation:
    """Return the attempt of a call, else its trace, else what its first messages are recognised by."""
    named = caller.attributes.get(semconv.ATTEMPT_ID)
    if named is not None:
        return Conversation(_digest(b"attempt", [caller.attributes.get(semconv.ROLLOUT_ID), named]), True)
    if caller.parent_span_id is not None:
        return Conversation(_digest(b"trace", caller.trace_id), True)
    return Conversation(_digest(b"words", _first(request)), False)


def _first(request: EngineRequest) -> Any:
    if request.api is EngineApi.CHAT:
        messages = request.body.get("messages")
        return messages[:_FIRST_MESSAGES] if isinstance(messages, list) else messages
    prompt = request.body.get("prompt")
    return prompt[:256] if isinstance(prompt, str | list) else prompt


def _digest(kind: bytes, what: Any) -> str:
    return hashlib.blake2b(orjson.dumps(what), digest_size=16, person=kind).hexdigest()

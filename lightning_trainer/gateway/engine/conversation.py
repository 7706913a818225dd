"""Which conversation a call belongs to: the engine keeps sampled ids, and a replica is chosen, per conversation."""

import hashlib
from dataclasses import dataclass
from typing import Any

from lightning_instrumentation import semconv

from lightning_trainer.gateway.caller import Caller
from lightning_trainer.gateway.request import EngineApi, EngineRequest, write_json

OWNER_HEADER = "x-lightning-conversation"
_FIRST_MESSAGES = 2
"""The system message and the first question."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """The key of a conversation; calls with equal keys go to one replica if possible."""

    key: str
    owned: bool
    """Whether the key is an attempt's or a trace's: only then may a call reuse the ids that another one sampled."""

    @property
    def headers(self) -> dict[str, str]:
        """Return the request headers that tell the engine about the conversation."""
        return {OWNER_HEADER: self.key} if self.owned else {}


def conversation_of(caller: Caller, request: EngineRequest) -> Conversation:
    """Return the conversation of a call: its attempt, else its trace, else a digest of its first messages."""
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
    return hashlib.blake2b(write_json(what), digest_size=16, person=kind).hexdigest()

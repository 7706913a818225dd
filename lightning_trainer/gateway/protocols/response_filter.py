"""Removes from a response what the caller did not ask for, so that it reads as it would without us.

vLLM always writes the fields for token ids and logprobs and leaves them null unless asked for, so they become null
again, and absent fields stay absent. In a stream it sends chunks with an empty delta only to carry ids or logprobs;
those are dropped. Usage is never requested on the caller's behalf (the exact ids give the counts), so it never needs
hiding.
"""

from typing import Any

from lightning_trainer.gateway.request import EngineRequest


def restore(document: dict[str, Any], request: EngineRequest) -> None:
    """Rewrite a response or a chunk in place: the caller's model name, and only fields that were asked for."""
    if "model" in document:
        document["model"] = request.model
    choices = document.get("choices") or ()
    if not request.asked_token_ids:
        _blank(document, "prompt_token_ids")
        for choice in choices:
            _blank(choice, "token_ids")
            _blank(choice, "prompt_token_ids")
    if not request.asked_logprobs:
        for choice in choices:
            _blank(choice, "logprobs")


def hides_nothing(request: EngineRequest, served_name: str) -> bool:
    """Whether the engine's bytes can be sent unchanged."""
    return request.asked_token_ids and request.asked_logprobs and request.model == served_name


def carries_only_tokens(chunk: dict[str, Any], request: EngineRequest) -> bool:
    """Whether a chunk exists only because ids and logprobs were requested; call it before `restore`."""
    if request.asked_token_ids or request.asked_logprobs:
        return False
    choices = chunk.get("choices")
    return bool(choices) and all(
        choice.get("delta") == {} and choice.get("finish_reason") is None and _has_tokens(choice) for choice in choices
    )


def _has_tokens(choice: dict[str, Any]) -> bool:
    return choice.get("token_ids") is not None or choice.get("logprobs") is not None


def _blank(holder: dict[str, Any], name: str) -> None:
    if name in holder:
        holder[name] = None

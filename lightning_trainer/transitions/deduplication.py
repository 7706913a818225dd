"""One record for each response, however often and by however many instrumentations it was recorded.

Two records are of the same response when they have the same call id, or the same response id and choice and nothing
that both state differs: some servers give every response the same id, so the tokens and the attempt must agree too.
The fullest record is kept, ties going to the smallest call id, so the order of arrival has no effect.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_trainer.token_ids import packed
from lightning_trainer.types import Call


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Every delivered call is in exactly one of the two."""

    kept: tuple[Call, ...]
    """By start time, then call id."""
    repeated: tuple[tuple[Call, Call], ...]
    """Pairs: the record that is left out, and the one that is kept in its place."""


def deduplicate(calls: Sequence[Call]) -> Deliveries:
    """Keep one record for each response."""
    kept: dict[str, Call] = {}
    repeated: list[tuple[Call, Call]] = []
    by_text: dict[tuple, Call] = {}
    by_tokens: dict[tuple, Call] = {}
    by_response: dict[tuple, Call] = {}
    alone: set[tuple] = set()
    several = len({call.call_id for call in calls}) < len(calls)
    for call in sorted(calls, key=_fullest_first_of_several if several else _fullest_first):
        original = kept.get(call.call_id)
        if original is None and call.response_id is not None:
            response = (call.response_id, call_choice(call))
            if response not in by_response:
                # Nearly every response is recorded once, and telling it by its tokens is the costly part.
                by_response[response] = kept[call.call_id] = call
                alone.add(response)
                continue
            if response in alone:
                alone.remove(response)
                first = by_response[response]
                by_tokens[_tokens(first)] = by_text[_tokens(first), first.attempt_id] = first
            tokens = _tokens(call)
            text = (tokens, call.attempt_id)
            # Fuller records come first: one without tokens, or without an attempt, can only repeat a fuller one.
            if not call.prompt_ids and not call.response_ids:
                original = by_response.get(response)
            elif call.attempt_id is None:
                original = by_tokens.get(tokens)
            else:
                original = by_text.get(text)
            if original is None:
                by_tokens.setdefault(tokens, call)
                by_text.setdefault(text, call)
        if original is None:
            kept[call.call_id] = call
        else:
            repeated.append((call, original))
    in_time = sorted(kept.values(), key=lambda call: (call.start_ns, call.call_id))
    return Deliveries(tuple(in_time), tuple(repeated))


def _tokens(call: Call) -> tuple:
    return (call.response_id, call_choice(call), packed(call.prompt_ids), packed(call.response_ids))


def call_choice(call: Call) -> str:
    """Return which choice of its response a call is (the part of the call id after the span id)."""
    return call.call_id.rpartition("/")[2]


def _fullest_first(call: Call) -> tuple:
    return (
        not (call.prompt_ids or call.response_ids),
        call.attempt_id is None,
        call.policy_version is None,
        call.behaviour_logprobs is None,
        not call.complete,
        call.agent is None,
        call.call_id,
    )


def _fullest_first_of_several(call: Call) -> tuple:
    """Tell records apart that contradict each other under one call id."""
    return (
        *_fullest_first(call),
        call.start_ns,
        call.end_ns,
        packed(call.response_ids),
        packed(call.prompt_ids),
        call.agent or "",
        call.attempt_id or "",
        call.behaviour_logprobs or (),
    )

"""One record for each response, however often it was delivered.

Which spans belong to one call was decided when they were read (``ingest/joining.py``). What is left are repeated
records of a call: with the same call id, or with the same response id, choice, and tokens, and attempts that do not
contradict each other. A response id alone proves nothing, since some servers give many responses the same one: so a
call without tokens repeats none, and two calls that a policy version answered were recorded by the gateway, which
records each once. The fullest record is kept, ties going to the smallest call id, so the order of arrival has no
effect.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from lightning_trainer.token_ids import packed
from lightning_trainer.types import Call


@dataclass(frozen=True, slots=True)
class Deliveries:
    """The delivered calls: each is either kept or left out."""

    kept: tuple[Call, ...]
    """Trace by trace, each by start time, then call id."""
    repeated: tuple[tuple[Call, Call], ...]
    """Pairs: the record that is left out, and the one that is kept in its place."""


def deduplicate(calls: Sequence[Call]) -> Deliveries:
    """Keep one record for each response."""
    kept: dict[str, Call] = {}
    alone: list[Call] = []
    repeated: list[tuple[Call, Call]] = []
    by_text: dict[tuple, Call] = {}
    by_tokens: dict[tuple, Call] = {}
    # Nearly every response is recorded once, and telling the others (and choices of one response) apart is costly.
    of_id = Counter(map(attrgetter("call_id"), calls))
    of_response = Counter(map(attrgetter("response_id"), calls))
    of_response[None] = 1
    doubtful: list[Call] = []
    for call in calls:
        once = of_id[call.call_id] == 1 and of_response[call.response_id] == 1
        (alone if once else doubtful).append(call)
    for call in sorted(doubtful, key=_fullest_first):
        original = kept.get(call.call_id)
        if original is None and call.response_id is not None and (call.prompt_ids or call.response_ids):
            tokens = _tokens(call)
            text = (tokens, call.attempt_id)
            # Fuller records come first: one without an attempt, or a version, can only repeat a fuller one.
            if call.policy_version is None:
                original = by_tokens.get(tokens) if call.attempt_id is None else by_text.get(text)
            if original is None:
                by_tokens.setdefault(tokens, call)
                by_text.setdefault(text, call)
        if original is None:
            kept[call.call_id] = call
        else:
            repeated.append((call, original))
    return Deliveries(tuple(sorted([*alone, *kept.values()], key=by_trace)), tuple(repeated))


by_trace = attrgetter("trace_id", "start_ns", "call_id")
"""Sort key: calls of rollouts that ran side by side lie far apart in memory, those of one trace together."""


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
        call.behavior_logprobs is None,
        call.support is None,
        call.shaping is None,
        call.routed_experts is None,
        not call.complete,
        call.agent is None,
        call.call_id,
        # What follows tells records apart that contradict each other under one call id.
        call.start_ns,
        call.end_ns,
        packed(call.response_ids),
        packed(call.prompt_ids),
        call.agent or "",
        call.attempt_id or "",
        call.behavior_logprobs or (),
    )

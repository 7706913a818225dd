"""A prompt that repeats an earlier answer as text, in other tokens than those that were sampled.

The agent sends back the answer as a client (and a parser of tool calls) returned it, and the chat template renders it
again: the sampled ids and those in the next prompt then differ. Such a call starts its own sequence at the first token
that differs.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from lightning_trainer.explain.call_tree import call_tree, shared_length
from lightning_trainer.explain.case import Case
from lightning_trainer.explain.finding import Finding, counted
from lightning_trainer.ingest.dialects.dialect import Conversation
from lightning_trainer.ingest.dialects.registry import dialect_of
from lightning_trainer.samples.transitions.deduplication import call_choice
from lightning_trainer.types import Call

_SHOWN = 3
_NOTHING = Conversation()


def diagnose(case: Case) -> Finding | None:
    """Find a call that repeats an earlier answer in other tokens, and name the first token that differs."""
    roots = {node.call.call_id for node in call_tree(case.own) if node.parent is None}
    parted = [(call, before) for call, before in _repeats(case) if call.call_id in roots and _has_ids(call, before)]
    if not parted:
        return None
    call, before = parted[0]
    path = before.prompt_ids + before.response_ids
    at = shared_length(call.prompt_ids, path)
    sampled, shown = path[at : at + _SHOWN], call.prompt_ids[at : at + _SHOWN]
    sent = "answer" if at >= len(before.prompt_ids) else "conversation"
    others = f" ({counted(len(parted) - 1, 'more call')} like it)" if len(parted) > 1 else ""
    return Finding(
        "retokenized",
        f"call {case.number(call)} sends the {sent} of call {case.number(before)} back as text, and its prompt has "
        f"other tokens for it: they part at token {at} (sampled {_named(sampled)}, shown {_named(shown)}){others}; so "
        "it is a sequence of its own that shares no more context. A chat template that renders answers as they were "
        "sampled, tool calls too, avoids that",
        blocks=False,
    )


def _named(token_ids: tuple[int, ...]) -> str:
    return " ".join(map(str, token_ids)) or "nothing more"


def _repeats(case: Case) -> Iterator[tuple[Call, Call]]:
    """Yield calls whose messages begin with an earlier call's question and answer, with the latest such call."""
    answered: dict[int, Call] = {}
    for call in case.own:
        said, talk, before = _said(call, case), 0, None
        for message in said.input_messages:
            talk = hash((talk, _plain(message)))
            before = answered.get(talk, before)
        if before is not None:
            yield call, before
        choice = int(call_choice(call))
        if choice < len(said.output_messages):
            answered[hash((talk, _plain(said.output_messages[choice])))] = call


def _said(call: Call, case: Case) -> Conversation:
    joined = case.joined.get((call.trace_id, call.span_id))
    records = joined.records if joined is not None else ()
    conversations = (dialect_of(record.span).conversation(record.span) for record in records)
    return next((said for said in conversations if said.input_messages and said.output_messages), _NOTHING)


def _has_ids(call: Call, before: Call) -> bool:
    """Whether both calls have token ids: text alone does not fork at a token."""
    return bool(call.prompt_ids and before.response_ids)


def _plain(message: Mapping[str, Any]) -> tuple:
    """Return a message's role and text, without ids and finish reasons."""
    parts = [part for part in message.get("parts") or () if isinstance(part, Mapping)]
    return message.get("role"), tuple((part.get("type"), part.get("name"), _words(part)) for part in parts)


def _words(part: Mapping[str, Any]) -> str:
    return repr(part.get("content") or part.get("arguments") or part.get("response")).strip()

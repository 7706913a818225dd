"""Whole conversations as chat messages, as other projects fine-tune on them.

- ``messages``: rows of ``messages`` and ``tools``, as TRL's ``SFTTrainer``, verl's ``MultiTurnSFTDataset`` and
  LLaMA-Factory read them; a pair is ``chosen`` and ``rejected`` with the prompt in both, as for TRL's ``DPOTrainer``.
  The arguments of tool calls are objects, as chat templates write them.
- ``openai``: the same for OpenAI's fine-tuning: arguments as JSON text, an id on every tool call, no reasoning; a pair
  is ``input`` with ``preferred_output`` and ``non_preferred_output``.

An answer that must not be imitated has OpenAI's ``"weight": 0``.

Source: TRL documentation, "Dataset formats and types"; ``verl/utils/dataset/multiturn_sft_dataset.py`` of verl 0.9.1
and ``data/converter.py`` of LLaMA-Factory (both Apache-2.0); OpenAI documentation, "Supervised fine-tuning" and "Direct
preference optimization".
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import orjson

from lightning_trainer.dataset.examples import Example
from lightning_trainer.dataset.rows import Row
from lightning_trainer.dataset.selection import Pair
from lightning_trainer.retokenize.chat import ChatMessage

_ASSISTANT = "assistant"


@dataclass(slots=True)
class Conversation:
    """The messages of a conversation, and which answers in it are examples."""

    messages: list[ChatMessage]
    tools: tuple[dict, ...]
    imitated: set[int]
    """Positions of the answers to imitate."""

    @property
    def only_read(self) -> int:
        """Return how many answers of the assistant must not be imitated."""
        return sum(one["role"] == _ASSISTANT for one in self.messages) - len(self.imitated)


def conversations(examples: Iterable[Example]) -> list[Conversation]:
    """Join examples to conversations, in which each example's answer is imitated in exactly one place.

    A call continues the conversation of an earlier call with the same agent, attempt and tools if its prompt begins, to
    the letter, with the earlier call's prompt and answer; an agent's name that a framework adds to the answer makes no
    difference. If several calls continue the same one, the first is joined to it; the others, and those whose history
    was rewritten (reasoning taken out, a summary), begin rows of their own.

    Args:
        examples: with words, oldest first.
    """
    found: list[Conversation] = []
    ends: dict[bytes, Conversation] = {}
    for example in examples:
        assert example.prompt is not None
        assert example.answer is not None
        place = len(example.prompt)
        said = [*example.prompt, example.answer]
        states = _states(example, said)
        before = next((state for state in reversed(states[:-1]) if state in ends), None)
        if before is None:
            conversation = Conversation(said, example.tools, {place})
            found.append(conversation)
        else:
            conversation = ends.pop(before)
            conversation.messages = said
            conversation.imitated.add(place)
        ends[states[-1]] = conversation
    return found


def _states(example: Example, said: Sequence[ChatMessage]) -> list[bytes]:
    """Return a digest of everything up to and including each message."""
    start = _digest(b"", [example.agent, example.attempt_id, example.tools])
    return list(accumulate(map(_unnamed, said), _digest, initial=start))[1:]


def _unnamed(message: ChatMessage) -> ChatMessage:
    """Return an answer without the name that LangChain's agents add when they send it again."""
    if message["role"] != _ASSISTANT or "name" not in message:
        return message
    return {name: value for name, value in message.items() if name != "name"}


def _digest(before: bytes, said: Any) -> bytes:
    return hashlib.sha256(before + orjson.dumps(said, option=orjson.OPT_SORT_KEYS)).digest()


def messages_row(conversation: Conversation) -> Row:
    """Return a conversation as ``messages`` and, if it has any, ``tools``."""
    return {"messages": _weighed(conversation), **_tools(conversation.tools)}


def preference_row(pair: Pair) -> Row:
    """Return a pair as two conversations, equal up to the answer."""
    assert pair.chosen.prompt is not None
    said = list(pair.chosen.prompt)
    return {
        "chosen": [*said, pair.chosen.answer],
        "rejected": [*said, pair.rejected.answer],
        **_tools(pair.chosen.tools),
    }


def openai_row(conversation: Conversation) -> Row:
    """Return a conversation as a line of OpenAI's supervised fine-tuning."""
    return {"messages": _openai(_weighed(conversation)), **_openai_tools(conversation.tools)}


def openai_preference_row(pair: Pair) -> Row:
    """Return a pair as a line of OpenAI's preference tuning."""
    row = preference_row(pair)
    (*said, chosen), (*_, rejected) = _openai(row["chosen"]), _openai(row["rejected"])
    return {
        "input": {"messages": said, **_openai_tools(pair.chosen.tools)},
        "preferred_output": [chosen],
        "non_preferred_output": [rejected],
    }


def _weighed(conversation: Conversation) -> list[ChatMessage]:
    return [
        {**one, "weight": 0} if one["role"] == _ASSISTANT and place not in conversation.imitated else one
        for place, one in enumerate(conversation.messages)
    ]


def _tools(tools: tuple[dict, ...]) -> Row:
    return {"tools": list(tools)} if tools else {}


def _openai_tools(tools: tuple[dict, ...]) -> Row:
    """Return tools without their unknown fields: the API does not accept null for a description or a schema."""
    known = (
        {**tool, "function": {name: value for name, value in tool["function"].items() if value is not None}}
        for tool in tools
    )
    return _tools(tuple(known))


def _openai(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return messages as OpenAI's API takes them; calls without ids are answered in their order."""
    written: list[ChatMessage] = []
    unanswered: list[str] = []
    for place, message in enumerate(messages):
        made = {name: value for name, value in message.items() if name != "reasoning_content"}
        if calls := made.get("tool_calls"):
            made["tool_calls"] = [_openai_call(call, f"call_{place}_{number}") for number, call in enumerate(calls)]
            unanswered = [call["id"] for call in made["tool_calls"]]
        elif made["role"] == "tool":
            made["tool_call_id"] = made.get("tool_call_id") or next(iter(unanswered), f"call_{place}")
            unanswered = [one for one in unanswered if one != made["tool_call_id"]]
        written.append(made)
    return written


def _openai_call(call: dict[str, Any], usual_id: str) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    if not isinstance(arguments, str):
        arguments = orjson.dumps({} if arguments is None else arguments).decode()
    return {"id": usual_id, **call, "function": {**function, "arguments": arguments}}

"""Reading rows of datasets: a field by its name, the right answer, and the prompt, which becomes a first observation.

The names are those of verl's, TRL's, SkyRL's and OpenAI's rows. This module needs only the standard library: it is also
imported in the interpreters of third-party environments.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from lightning_trainer.environments.protocol import Observation

Message: TypeAlias = Mapping[str, Any]
Prompt: TypeAlias = str | Sequence[Message]

PROMPTS = ("prompt", "messages", "question")
_TRUTHS = ("ground_truth", "reward_model.ground_truth", "reward_spec.ground_truth")
_SYSTEM = ("system", "developer")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def field_of(fields: Mapping[str, Any], name: str, missing: Any = None) -> Any:
    """Return a field, or one inside another, as in ``extra_info.level``; a field with exactly that name comes first."""
    if name in fields:
        return fields[name]
    outer, _, inner = name.partition(".")
    held = fields.get(outer)
    return field_of(held, inner, missing) if inner and isinstance(held, Mapping) else missing


def stable_form(value: Any) -> Any:
    """Return a substitute for a value that is not JSON (``default`` of ``json.dumps``), the same in every process.

    Sets are sorted, arrays become lists, and pictures get a digest of their pixels. Anything else becomes its text
    without memory addresses, so an object with Python's default text is reduced to its type's name.
    """
    if isinstance(value, set | frozenset):
        return sorted(value, key=lambda one: json.dumps(one, sort_keys=True, default=stable_form))
    if hasattr(value, "tolist"):
        return value.tolist()
    text = _ADDRESS.sub("", str(value))
    if hasattr(value, "tobytes"):
        return [text, hashlib.sha256(value.tobytes()).hexdigest()]
    return text


def truth_of(fields: Mapping[str, Any]) -> Any:
    """Return the right answer, from where verl and SkyRL keep it; None if there is none."""
    return next((truth for name in _TRUTHS if (truth := field_of(fields, name)) is not None), None)


def prompt_of(fields: Mapping[str, Any]) -> Prompt | None:
    """Return the model's prompt, text or chat messages; None if the row has none.

    ``messages`` may continue with the answer, as in demonstrations; the model must not see it.

    Raises:
        ValueError: the prompt is neither text nor messages.
    """
    name = next((name for name in PROMPTS if fields.get(name)), None)
    if name is None:
        return None
    asked = fields[name]
    if isinstance(asked, str):
        return asked
    if not isinstance(asked, Sequence) or not all(isinstance(one, Mapping) and "role" in one for one in asked):
        raise ValueError(f"the task's {name} is {repr(asked)[:200]}; it must be text, or messages, each with a role")
    messages = list(asked)
    while name == "messages" and messages and messages[-1]["role"] == "assistant":
        messages.pop()
    return messages


def observation_of(prompt: Prompt) -> Observation:
    """Return a prompt as the first observation; its system messages become the instructions."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    system = [text_of(message) for message in messages if message["role"] in _SYSTEM]
    said = [message for message in messages if message["role"] not in _SYSTEM]
    return Observation(shown(said), instructions="\n\n".join(system) or None, images=tuple(_pictures(said)))


def shown(messages: Sequence[Message]) -> str:
    """Return messages as one text, with their roles unless all are the user's, as with examples."""
    if all(message["role"] == "user" for message in messages):
        return "\n\n".join(map(text_of, messages))
    return "\n\n".join(f"{message['role']}: {text_of(message)}" for message in messages)


def text_of(message: Message) -> str:
    """Return the text of a message, whose content may be in parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(str(part["text"]) for part in content if part.get("type") == "text")


def _pictures(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, Sequence) and not isinstance(content, str) else ():
            if part.get("type") == "image_url":
                yield part["image_url"]["url"]

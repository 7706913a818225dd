"""Attempts rendered as text, for a model that judges them.

A common beginning of several attempts is stated once. Text that is too long is cut in the middle, with a note there:
how an attempt began and how it ended matters most. Each attempt is enclosed in marks with a code derived from
everything shown, so nothing that an agent wrote can end its attempt and begin another.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from lightning_trainer.errors import JudgeError
from lightning_trainer.ingest.dialects.dialect import Message
from lightning_trainer.judges.attempts import JudgedAttempt, Turn
from lightning_trainer.types import AttemptState

_CODE_LETTERS = 5
_HEAD_SHARE = 0.4
"""Share of the characters kept from a long text that come from its beginning."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """Attempts in the form that a judge reads."""

    text: str
    codes: tuple[str, ...]
    """The name of each attempt in the text, in order."""


def rendered(attempts: Sequence[JudgedAttempt], max_chars: int, *, closings: Sequence[str] = ()) -> Rendered:
    """Return the attempts as text.

    Args:
        max_chars: limit for each attempt, and for their common part.
        closings: text at the end of each attempt, inside its marks, that is not cut; none, or one for each attempt.

    Raises:
        JudgeError: the text of an attempt was not recorded.
    """
    parts = [_parts(one) for one in attempts]
    shared = _shared(parts) if len(parts) > 1 else 0
    common = "\n\n".join(parts[0][:shared])
    own = ["\n\n".join(one[shared:]) for one in parts]
    endings = list(closings) or [""] * len(own)
    codes = _codes(common, [text + ending for text, ending in zip(own, endings, strict=True)])
    blocks = [_marked("common", codes[-1], cut(common, max_chars))] if common else []
    blocks += [
        _marked("attempt", code, cut(text, max_chars) + ending)
        for code, text, ending in zip(codes, own, endings, strict=False)
    ]
    if common:
        blocks.insert(
            0, f"All attempts begin with what stands in <common {codes[-1]}>, and go on as in their own part."
        )
    return Rendered("\n\n".join(blocks), tuple(codes[: len(own)]))


def message_text(message: Message) -> str:
    """Return a message as text: its text, tool calls, and tool results; other parts by their kind."""
    said: list[str] = []
    for part in message.get("parts") or ():
        if not isinstance(part, Mapping):
            continue
        kind = part.get("type")
        if kind in ("text", "reasoning") and isinstance(part.get("content"), str):
            said.append(part["content"] if kind == "text" else f"(thinking) {part['content']}")
        elif kind == "tool_call":
            said.append(f"(calls the tool {part.get('name')} with {_plain(part.get('arguments'))})")
        elif kind == "tool_call_response":
            said.append(f"(the tool answers) {_plain(part.get('response'))}")
        else:
            said.append(f"({kind or 'a part'}, not shown)")
    return "\n".join(said)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def _parts(one: JudgedAttempt) -> list[str]:
    attempt = one.attempt
    if (why := one.unreadable) is not None:
        raise JudgeError(f"attempt {attempt.attempt_id} cannot be read: {why}")
    parts = (
        [] if one.asked is None else [f"The task, as it was given (an agent may have seen less of it):\n{one.asked}"]
    )
    seen: dict[str | None, set[int]] = {}
    for turn in one.turns:
        parts += _turn_parts(turn, seen.setdefault(turn.call.agent, set()))
    parts += [
        f"At the end the tool {run.name} was run with {run.arguments or 'no arguments'}; it gave:\n{run.result}"
        for run in one.last_tools
    ]
    if attempt.state is AttemptState.FAILED:
        parts.append(f"The program then ended with an error: {attempt.error}")
    return parts


def _turn_parts(turn: Turn, seen: set[int]) -> list[str]:
    """Return what a call adds to the earlier ones of its agent.

    Args:
        seen: hashes of the conversation prefixes already shown; this call's are added.
    """
    agent = turn.call.agent or "the agent"
    if turn.answer is None:
        return [f"[{agent} answers; its words were not recorded]"]
    prompt = [(str(message.get("role") or "?"), message) for message in turn.prompt]
    said = [(role, _without_reasoning(message)) for role, message in [*prompt, ("assistant", turn.answer)]]
    beginnings = list(accumulate(said, lambda before, said: hash((before, said)), initial=0))
    known = 0
    while known < len(prompt) and beginnings[known + 1] in seen:
        known += 1
    seen.update(beginnings)
    shown = [f"[shown to {agent}: {role}]\n{message_text(message)}" for role, message in prompt[known:]]
    ending = "" if turn.call.complete else "\n(the answer was cut off)"
    if turn.call.truncated:
        ending = "\n(the answer was cut at its limit of tokens)"
    return [*shown, f"[{agent} answers]\n{message_text(turn.answer)}{ending}"]


def _without_reasoning(message: Message) -> str:
    """Return the text of a message as a later prompt repeats it: most leave the reasoning out."""
    parts = [part for part in message.get("parts") or () if not _is_reasoning(part)]
    return message_text({**message, "parts": parts}).strip()


def _is_reasoning(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "reasoning"


def _shared(parts: Sequence[Sequence[str]]) -> int:
    """Return the number of leading parts that all attempts share; every attempt keeps at least one of its own."""
    most = min(map(len, parts)) - 1
    count = 0
    while count < most and all(one[count] == parts[0][count] for one in parts):
        count += 1
    return count


def _codes(common: str, own: Sequence[str]) -> list[str]:
    """Return a code for each attempt and one for the common part; the same texts get the same codes."""
    everything = hashlib.blake2b(json.dumps([common, *own]).encode()).digest()
    codes: list[str] = []
    salt = 0
    while len(codes) < len(own) + 1:
        digest = hashlib.blake2b(everything + salt.to_bytes(4, "big"), digest_size=8).digest()
        code = base64.b32encode(digest).decode().lower()[:_CODE_LETTERS]
        salt += 1
        if code not in codes:
            codes.append(code)
    return codes


def _marked(what: str, code: str, text: str) -> str:
    return f"<{what} {code}>\n{text}\n</{what} {code}>"


def cut(text: str, max_chars: int) -> str:
    """Return a text; if it is longer than ``max_chars``, with a note in the place of its middle."""
    if len(text) <= max_chars:
        return text
    head = int(max_chars * _HEAD_SHARE)
    tail = max_chars - head
    left_out = len(text) - max_chars
    return f"{text[:head]}\n[... {left_out:,} characters are left out here, for want of room ...]\n{text[-tail:]}"

"""Counts how many of a choice's sampled tokens are its reasoning, whichever of the engine's parsers separated it.

The engine's own count is 0 with parsers that do not count, and with others if the prompt begins the thought
(``<think>`` at a template's end). So the tokens that contain the reasoning's text are counted here; their texts come
with the logprobs. The comparison ignores white space, because parsers strip it; tokens of white space next to the text
are counted, because they are inside of the thought's marks.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any


def count_tokens(reasoning: str, tokens: Sequence[str]) -> int:
    """Return how many of the tokens are the reasoning, without the marks around it; 0 if they lack its text."""
    wanted, told = _without_space(reasoning), [_without_space(text) for text in tokens]
    if not wanted:
        return 0
    said, starts = "".join(told), list(accumulate(map(len, told), initial=0))
    # The reasoning begins where a token begins: otherwise letters inside a mark could match.
    first = next((index for index in range(len(told)) if said.startswith(wanted, starts[index])), None)
    if first is None:
        return 0
    end = bisect_left(starts, starts[first] + len(wanted))
    while end < len(told) and not told[end]:
        end += 1
    return end - first


@dataclass(slots=True)
class TokenTexts:
    """The texts of sampled tokens by choice, up to the piece that begins the choice's answer proper."""

    by_choice: dict[int, list[str]] = field(default_factory=dict)
    _answering: set[int] = field(default_factory=set)

    def add(self, part: Mapping[str, Any]) -> None:
        """Add a whole response, or one chunk of a stream."""
        for position, said in enumerate(part.get("choices") or ()):
            index = said.get("index", position)
            if index in self._answering:
                continue
            message = said.get("message") or said.get("delta") or {}
            if message.get("content") or message.get("tool_calls"):
                self._answering.add(index)
                if not message.get("reasoning"):
                    continue
            entries = (said.get("logprobs") or {}).get("content") or ()
            self.by_choice.setdefault(index, []).extend(map(_text, entries))


def _text(entry: Mapping[str, Any]) -> str:
    # `token` is a number if the caller asked for that (`return_tokens_as_token_ids`).
    spelled = entry.get("bytes")
    return entry.get("token", "") if spelled is None else bytes(spelled).decode(errors="replace")


def _without_space(text: str) -> str:
    return "".join(text.split())

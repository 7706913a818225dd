"""What the engine sampled, collected from a response or from the chunks of a stream.

The client's own reader of chat completions and completions does the reading, so that a call is the same in both of its
records. Ids and log-probabilities are taken as they come and never derived from text.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from lightning_instrumentation.wire.answer import Answer, Choice
from lightning_instrumentation.wire.chat import ChatAnswer


@dataclass(slots=True)
class SampledFrom:
    """What the engine says of how a choice's tokens were drawn, besides the tokens themselves."""

    support: bytes | None = None
    """What each token could have been (``lightning_trainer.sampling``); None where it could be any."""
    support_unknown: str | None = None
    """Why that is not known; None where it is."""
    routed_experts: bytes | None = None
    """Which experts its tokens and its prompt's went through (``lightning_trainer.experts``); None where not told."""


@dataclass(slots=True)
class Transcript:
    """One response of the engine."""

    expected_choices: int
    id_prefix: str | None = None
    """Replaces the prefix of the engine's response id, where the caller's API has another."""
    answer: Answer = field(default_factory=ChatAnswer)
    """Reads the engine's format and holds what was read."""
    sampled_from: dict[int, SampledFrom] = field(default_factory=dict)
    support_known: bool = False
    """Whether the engine says what tokens were drawn from, and says nothing where that is all of the vocabulary."""

    def add(self, part: Mapping[str, Any]) -> None:
        """Add a whole response, or one chunk of a stream."""
        self.answer.add(part)

    def add_supports(self, by_choice: Mapping[str, Mapping[str, str]]) -> None:
        """Add what the engine says of the supports of choices, by their index."""
        for index, said in by_choice.items():
            found = self.sampled_from.setdefault(int(index), SampledFrom())
            found.support_unknown = said.get("unknown")
            if "support" in said:
                found.support = base64.b64decode(said["support"])
            if "routed_experts" in said:
                found.routed_experts = base64.b64decode(said["routed_experts"])

    @property
    def choices(self) -> dict[int, Choice]:
        return self.answer.choices

    @property
    def error(self) -> str | None:
        """What the engine said went wrong in the middle of a stream."""
        return self.answer.error

    @property
    def response_id(self) -> str | None:
        """The engine's id, under the name that the caller's API gives such ids."""
        response_id = self.answer.response_id
        if response_id is None or self.id_prefix is None:
            return response_id
        return f"{self.id_prefix}{response_id.removeprefix('chatcmpl-')}"

    @property
    def prompt_ids(self) -> list[int]:
        return list(cast("list[int]", self.answer.prompt_ids) or ())

    def sampled(self) -> dict[int, tuple[list[int], list[float]]]:
        """Return by choice its ids and log-probabilities; of the latter there are fewer where some did not come."""
        # The gateway reads whole documents: the client's short cut, numbers that stay text, is not taken here.
        return {
            index: (cast("list[int]", choice.token_ids), cast("list[float]", choice.logprobs))
            for index, choice in self.choices.items()
        }

    @property
    def output_tokens(self) -> int:
        return sum(len(choice.token_ids) for choice in self.choices.values())

    @property
    def complete(self) -> bool:
        """Whether every choice has come to its end."""
        ended = sum(choice.finish_reason is not None for choice in self.choices.values())
        return self.error is None and ended >= self.expected_choices

"""The transcript of an engine's response, collected from a whole response or from the chunks of a stream.

The client's own parser of chat completions and completions is used, so that a call is the same in both of its records.
Ids and logprobs are taken from the engine and never derived from text.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from lightning_instrumentation.wire.answer import Answer, Choice
from lightning_instrumentation.wire.chat import ChatAnswer

from lightning_trainer.gateway.engine.reasoning_tokens import TokenTexts, count_tokens


@dataclass(slots=True)
class SampledFrom:
    """How a choice's tokens were sampled, according to the engine; the tokens themselves are elsewhere."""

    support: bytes | None = None
    """The support of each token (``lightning_trainer.sampling``); None if it was the whole vocabulary."""
    support_unknown: str | None = None
    """Why the support is unknown; None if it is known."""
    routed_experts: bytes | None = None
    """The experts that prompt and response went through (``lightning_trainer.experts``); None if not reported."""


@dataclass(slots=True)
class Transcript:
    """One response of the engine."""

    expected_choices: int
    id_prefix: str | None = None
    """Replaces the prefix of the engine's response id, if the caller's API uses another one."""
    answer: Answer = field(default_factory=ChatAnswer)
    """Parses the engine's format and holds the result."""
    sampled_from: dict[int, SampledFrom] = field(default_factory=dict)
    support_known: bool = False
    """Whether the engine reports supports; a token without one then was sampled from the whole vocabulary."""
    _texts: TokenTexts = field(default_factory=TokenTexts)

    def add(self, part: Mapping[str, Any]) -> None:
        """Add a whole response, or one chunk of a stream."""
        self.answer.add(part)
        if isinstance(self.answer, ChatAnswer):  # in completions nothing is parsed
            self._texts.add(part)

    def add_supports(self, by_choice: Mapping[str, Mapping[str, str]]) -> None:
        """Add the supports that the engine reports for choices, by their index."""
        for index, said in by_choice.items():
            found = self.sampled_from.setdefault(int(index), SampledFrom())
            found.support_unknown = said.get("unknown")
            if "support" in said:
                found.support = base64.b64decode(said["support"])
            if "routed_experts" in said:
                found.routed_experts = base64.b64decode(said["routed_experts"])

    @property
    def choices(self) -> dict[int, Choice]:
        """Return the choices of the answer so far, by index."""
        return self.answer.choices

    @property
    def error(self) -> str | None:
        """Return the error that the engine reported in the middle of a stream."""
        return self.answer.error

    @property
    def response_id(self) -> str | None:
        """Return the engine's id, with the prefix that the caller's API uses."""
        response_id = self.answer.response_id
        if response_id is None or self.id_prefix is None:
            return response_id
        return f"{self.id_prefix}{response_id.removeprefix('chatcmpl-')}"

    @property
    def prompt_ids(self) -> list[int]:
        """Return the prompt's ids; empty if they have not arrived."""
        return list(cast("list[int]", self.answer.prompt_ids) or ())

    def sampled(self) -> dict[int, tuple[list[int], list[float]]]:
        """Return ids and logprobs by choice; there are fewer logprobs than ids if some did not arrive."""
        # The gateway reads whole documents, so the client's shortcut (numbers that stay text) does not apply here.
        return {
            index: (cast("list[int]", choice.token_ids), cast("list[float]", choice.logprobs))
            for index, choice in self.choices.items()
        }

    @property
    def output_tokens(self) -> int:
        """Return the number of sampled tokens of all choices together."""
        return sum(len(choice.token_ids) for choice in self.choices.values())

    @property
    def reasoning_tokens(self) -> int:
        """Return the number of sampled tokens that are reasoning, of all choices together; 0 if that is not known."""
        return sum(
            count_tokens("".join(self.choices[index].reasoning), texts)
            for index, texts in self._texts.by_choice.items()
            if index in self.choices
        )

    @property
    def hidden(self) -> bool:
        """Whether a choice has words but no token ids, so that nothing of it can be recorded exactly."""
        return any(not choice.token_ids and choice.as_message()["parts"] for choice in self.choices.values())

    @property
    def cut_off(self) -> bool:
        """Whether the engine ended a choice for reasons of its own, such as new weights; if that was before the first
        token, there may be no choice at all."""
        reasons = [choice.finish_reason for choice in self.choices.values()]
        return self.error is None and (not reasons or not {None, "abort"}.isdisjoint(reasons))

    @property
    def complete(self) -> bool:
        """Whether every choice has ended."""
        ended = sum(choice.finish_reason is not None for choice in self.choices.values())
        return self.error is None and ended >= self.expected_choices

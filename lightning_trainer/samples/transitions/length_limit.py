"""What becomes of a sequence that is longer than ``max_sample_tokens``.

The prompt is never shortened: a token that was sampled after the whole prompt has no log-probability after a part of
it, so a window over the last tokens would train against probabilities that it was not sampled with. What can be left
out is the end. ``drop`` leaves out every response that does not fit whole; ``cut`` trains its tokens up to the limit,
each after exactly what the engine saw, and leaves out the rest. Both leave out a response whose prompt alone fills the
limit. In a merged sequence this leaves the longest beginning that fits, since what extends a response is longer.
"""

from dataclasses import dataclass, replace
from typing import Literal

from lightning_trainer.samples.transitions.token_tree import Tokens
from lightning_trainer.sampling import Support, size_of
from lightning_trainer.types import Call, Transition

# Tokens that were sampled without a choice: a grammar, top-p, or the like left only one entry of the vocabulary.
#
# The probability of such a token is 1 under any weights, so its gradient is 0 and a ratio of two policies says
# nothing about it. Counted as trained it would only thin out the means of the loss; it is masked, with a reason of
# its own.


def without_choice(support: Support | None) -> list[int]:
    """Return the places ``[L]`` of a response at which only one entry was left."""
    if support is None:
        return []
    alone = {index for index, pattern in enumerate(support.patterns) if size_of(pattern, support.vocabulary) == 1}
    return [place for place, index in enumerate(support.pattern_L) if index in alone] if alone else []


def chosen(call: Call | Transition, kept: int) -> int:
    """Return how many of the first ``kept`` tokens of a response were sampled with a choice."""
    if call.support is None:
        return kept
    return kept - len(without_choice(call.support.first(kept)))


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit on the tokens of a sample, and the rule for what is longer."""

    max_tokens: int
    over_length: Literal["drop", "cut"] = "drop"

    def trainable(self, call: Tokens) -> int:
        """Return how many of the sampled tokens, from the first on, a sample can hold together with the prompt."""
        sampled, room = len(call.response_ids), self.max_tokens - len(call.prompt_ids)
        if sampled <= room:
            return sampled
        return max(0, room) if self.over_length == "cut" else 0

    def cut(self, transition: Transition) -> Transition:
        """Return the transition with only its trainable sampled tokens, of which there must be at least one."""
        kept = self.trainable(transition)
        if kept == len(transition.response_ids):
            return transition
        return replace(
            transition,
            response_ids=transition.response_ids[:kept],
            behavior_logprobs=transition.behavior_logprobs[:kept],
            support=None if transition.support is None else transition.support.first(kept),
        )

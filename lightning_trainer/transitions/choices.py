"""Tokens that were sampled without a choice: where a grammar, top-p or the like left one entry of the vocabulary.

The probability of such a token is 1 under any weights, so its gradient is 0 and a ratio of two policies says nothing
about it. Counted as trained it would only thin out the means of the loss; it is masked, with a reason of its own.
"""

from lightning_trainer.sampling import Support, size_of
from lightning_trainer.types import Call, Transition


def without_choice(support: Support | None) -> list[int]:
    """Return the places ``[L]`` of a response at which one entry was left."""
    if support is None:
        return []
    alone = {index for index, pattern in enumerate(support.patterns) if size_of(pattern, support.vocabulary) == 1}
    return [place for place, index in enumerate(support.pattern_L) if index in alone] if alone else []


def chosen(call: Call | Transition, kept: int) -> int:
    """Return how many of the first ``kept`` tokens of a response were sampled with a choice."""
    if call.support is None:
        return kept
    return kept - len(without_choice(call.support.first(kept)))

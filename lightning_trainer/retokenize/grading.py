"""Text to ids with a grade: ``verified`` when what the engine said confirms them, else the call stays ``text_only``.

What confirms ids made from words:

1. they decode to exactly the words that were recorded, always;
2. the server's own counts of prompt and response tokens are theirs, where it gave them; a count that differs refutes
   them (another template, other tools, another spelling);
3. where a scorer is at hand, every response token has a probability that a sampled token can have.

One of 2 and 3 is needed. Neither proves that the model sampled these very ids: other ids of the same number may spell
the same words. So the grade is below ``exact``, and reinforcement learning takes such calls only where the policy says
``allow_retokenized`` and the model that is trained is the one that answered: then the scores are behaviour
log-probabilities, and the policy ratio against them corrects for the difference.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from lightning_trainer.errors import LightningError
from lightning_trainer.ingest.dialects.dialect import Message
from lightning_trainer.retokenize.chat import ChatMessage, NoWordsError, chat_answer, chat_messages, chat_tools
from lightning_trainer.retokenize.texts import Words
from lightning_trainer.retokenize.tokenizer import PolicyTokenizer
from lightning_trainer.types import Call, Fidelity

IMPLAUSIBLE_NATS = -20.0
"""A token that was sampled at temperature 1 is below this once in e^20 times: such an id was not sampled there."""
_VERSION = re.compile(r"@v(\d{1,18})$")


class UnscorableError(LightningError, ValueError):
    """The engine is there and does not score these ids: there are too many, or one is not in its vocabulary."""


class Scorer(Protocol):
    """An engine that says how likely ids are."""

    model: str
    """The model that it scores with, as the server names it."""

    def score(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        """Return ``log p(token | before it)`` in nats at temperature 1, for every token but the first.

        Raises:
            UnscorableError: it does not score these.
        """
        ...


def retokenized(
    call: Call, words: Words | None, tokenizer: PolicyTokenizer, policy: str, scorer: Scorer | None = None
) -> tuple[Call, str | None]:
    """Return the call with ids and the grade ``verified``, or as it was with the reason why not.

    Args:
        policy: the name of the policy whose tokenizer it is.
        scorer: None where no engine is at hand; then the server's counts have to confirm the ids.
    """
    try:
        return _verified(call, words, tokenizer, policy, scorer), None
    except (_UnconfirmedError, NoWordsError, UnscorableError) as reason:
        return call, str(reason)


class _UnconfirmedError(Exception):
    """Why the ids of a call are not confirmed."""


def _verified(call: Call, words: Words | None, tokenizer: PolicyTokenizer, policy: str, scorer: Scorer | None) -> Call:
    """Return the call with confirmed ids.

    Raises:
        _UnconfirmedError: there are none.
        NoWordsError: of its prompt or its tools.
        UnscorableError: the engine does not score them.
    """
    if words is None or words.answer is None:
        raise _UnconfirmedError("no words of it were recorded")
    prompt_ids, spellings = _spelled(call, words, tokenizer)
    response_ids = _as_counted(words, prompt_ids, spellings)
    if scorer is None and (words.prompt_tokens is None or words.response_tokens is None):
        raise _UnconfirmedError(
            "the server gave no counts and no engine was named to score the ids, so nothing confirms them"
        )
    scores = None if scorer is None else _plausible_scores(scorer, prompt_ids, response_ids)
    # The scores are of the plain softmax, at temperature 1 and without penalties.
    plain = math.isclose(call.temperature, 1.0) and call.shaping is None
    sampled_here = scorer is not None and words.model == scorer.model and plain
    return replace(
        call,
        prompt_ids=prompt_ids,
        response_ids=response_ids,
        fidelity=Fidelity.VERIFIED,
        behavior_logprobs=scores if sampled_here else None,
        policy=call.policy or (policy if sampled_here else None),
        policy_version=_version(words.model) if sampled_here else call.policy_version,
    )


def _as_counted(words: Words, prompt_ids: Sequence[int], spellings: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the first spelling of the answer that has as many tokens as the server counted (2 above)."""
    if not spellings:
        raise _UnconfirmedError("the tokenizer does not give back the words of the answer")
    if words.prompt_tokens is not None and words.prompt_tokens != len(prompt_ids):
        raise _UnconfirmedError(
            f"the server counted {words.prompt_tokens} prompt tokens and the chat template gives {len(prompt_ids)}: "
            "the template, the tools or the model are others"
        )
    for response_ids in spellings:
        if words.response_tokens is None or len(response_ids) == words.response_tokens:
            return response_ids
    raise _UnconfirmedError(
        f"the server counted {words.response_tokens} response tokens, and its words spell another number"
    )


def _plausible_scores(scorer: Scorer, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> tuple[float, ...]:
    """Return the log-probabilities of the response's tokens, each one that a sampled token can have (3 above)."""
    scores = scorer.score([*prompt_ids, *response_ids])[len(prompt_ids) - 1 :]
    if wrong := [one for one in scores if not one > IMPLAUSIBLE_NATS]:
        raise _UnconfirmedError(
            f"the engine gives one of its response tokens the log-probability {min(wrong):.1f}: it was not sampled"
        )
    return scores


def _spelled(call: Call, words: Words, tokenizer: PolicyTokenizer) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    assert words.answer is not None
    answer = chat_answer(words.answer)
    if words.is_chat:
        messages, tools = chat_messages(words.prompt), chat_tools(words.tools)
        prompt_ids = tokenizer.prompt_ids(messages, tools)
    else:
        messages, tools = [], []
        prompt_ids = tokenizer.text_ids(_text(words.prompt))
    return prompt_ids, list(tokenizer.answers(messages, tools, answer, call.finish_reason))


def _text(prompt: Sequence[Message]) -> str:
    found: list[ChatMessage] = chat_messages(prompt)
    if len(found) != 1:
        raise NoWordsError(f"a text completion has {len(found)} prompts")
    return found[0]["content"]


def _version(model: str | None) -> int:
    """The version in a served name (``policy@v3``); a plain model is what the policy starts from."""
    found = _VERSION.search(model or "")
    return int(found[1]) if found else 0

"""Ids from text, with a grade: ``verified`` if the engine's data confirm them, else the call stays ``text_only``.

What confirms ids made from words:

1. always: they decode to exactly the recorded words;
2. if the server reported its own counts of prompt and response tokens: they agree; a count that differs refutes the ids
   (another template, other tools, another spelling);
3. if there is a scorer: every response token has a probability that a sampled token can have. A running vLLM is asked
   for ``prompt_logprobs`` in text completions (vLLM, OpenAI-compatible server, extra parameters): those of unscaled
   logits, that is, at temperature 1.

Besides 1, either 2 or 3 is needed. Neither proves that the model sampled these very ids: the same number of other ids
may spell the same words. So the grade is below ``exact``, and reinforcement learning takes such calls only if the
policy sets ``allow_retokenized`` and the trained model is the one that answered: then the scores are behavior
log-probabilities, and the policy ratio against them corrects for the difference.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import httpx
from lightning_instrumentation.routing.hosts import on_this_machine

from lightning_trainer.errors import EngineError, LightningError
from lightning_trainer.ingest.dialects.dialect import Message
from lightning_trainer.retokenize.chat import ChatMessage, NoWordsError, chat_answer, chat_messages, chat_tools
from lightning_trainer.retokenize.texts import Words
from lightning_trainer.retokenize.tokenizer import PolicyTokenizer
from lightning_trainer.types import Call, Fidelity

IMPLAUSIBLE_NATS = -20.0
"""A token sampled at temperature 1 is below this once in e^20 times, so an id below it was not sampled."""
_VERSION = re.compile(r"@v(\d{1,18})$")


class UnscorableError(LightningError, ValueError):
    """The engine answers but cannot score these ids: there are too many, or one is not in its vocabulary."""


class Scorer(Protocol):
    """An engine that says how likely ids are."""

    model: str
    """The model that it scores with, as the server names it."""

    def score(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        """Return ``log p(token | before it)`` in nats at temperature 1, for every token except the first.

        Raises:
            UnscorableError: it cannot score these ids.
        """
        ...


def retokenized(
    call: Call, words: Words | None, tokenizer: PolicyTokenizer, policy: str, scorer: Scorer | None = None
) -> tuple[Call, str | None]:
    """Return the call with ids and the grade ``verified``, or as it was with the reason why not.

    Args:
        policy: the name of the policy whose tokenizer it is.
        scorer: None if there is no engine; then the server's counts must confirm the ids.
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
        _UnconfirmedError: nothing confirms any ids.
        NoWordsError: its messages or tools cannot be put into words.
        UnscorableError: the engine cannot score the ids.
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
    # Scores are under the plain softmax, at temperature 1 and without penalties.
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
    """Return the log-probabilities of the response's tokens if a sampled token can have each of them (3 above)."""
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
    return prompt_ids, list(tokenizer.answers(messages, tools, answer, truncated=call.truncated))


def _text(prompt: Sequence[Message]) -> str:
    found: list[ChatMessage] = chat_messages(prompt)
    if len(found) != 1:
        raise NoWordsError(f"a text completion has {len(found)} prompts")
    return found[0]["content"]


def _version(model: str | None) -> int:
    """Return the version in a served name (``policy@v3``); a plain model is version 0, from which the policy starts."""
    found = _VERSION.search(model or "")
    return int(found[1]) if found else 0


class EngineScorer:
    """A client that lets an engine score one call at a time; use it as a context manager."""

    def __init__(
        self, base_url: str, model: str, *, api_key: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        """Connect to an engine.

        Args:
            base_url: the engine's, including ``/v1``.
            model: its name at the engine.

        Raises:
            EngineError: the address is not a URL.
        """
        self.model = model
        key = {"authorization": f"Bearer {api_key}"} if api_key else {}
        try:
            self._client = httpx.Client(
                base_url=base_url,
                headers={**key, **(headers or {})},
                timeout=600,
                trust_env=not on_this_machine(base_url),
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise EngineError(f"the engine's address {base_url!r} is not a URL: {error}") from error

    def __enter__(self) -> "EngineScorer":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def score(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        """Return ``log p(token | before it)``, nats, for every token except the first.

        Raises:
            UnscorableError: the engine refuses these ids (400).
            EngineError: there is no engine, it does not serve the model, or it does not score prompts.
        """
        body = {"model": self.model, "prompt": list(token_ids), "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
        try:
            answer = self._client.post("completions", json=body)
        except httpx.HTTPError as error:
            raise EngineError(f"the engine at {self._client.base_url} cannot be asked for scores: {error}") from error
        if answer.status_code == 400:
            raise UnscorableError(f"the engine does not score the ids: {answer.text[:300]}")
        if answer.status_code != 200:
            raise EngineError(
                f"the engine at {self._client.base_url} does not score ids: {answer.status_code} {answer.text[:300]}"
            )
        return tuple(_scores(answer, token_ids, str(self._client.base_url)))


def _scores(answer: httpx.Response, token_ids: Sequence[int], where: str) -> list[float]:
    try:
        positions = answer.json()["choices"][0]["prompt_logprobs"]
        return [
            float(position[str(token_id)]["logprob"])
            for token_id, position in zip(token_ids[1:], positions[1:], strict=True)
        ]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise EngineError(
            f"the engine at {where} answers without prompt_logprobs; name a vLLM server with --engine"
        ) from error

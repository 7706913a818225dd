"""The sampling distribution of a call, from its span: the request's parameters, and the support that the engine
reported.

Penalties and biases follow from the request alone (``Shaping``). Only the engine knows the part of the vocabulary that
a grammar, top_p, and the like left (``Support``). If the request uses one of these and the engine did not report it, or
uses a parameter that cannot be represented at all, the distribution is unknown and the call must not be trained.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

import orjson
from lightning_instrumentation import semconv

from lightning_trainer.experts import RoutedExperts
from lightning_trainer.ingest.dialects.values import number
from lightning_trainer.sampling import Shaping, Support
from lightning_trainer.token_ids import Ids
from lightning_trainer.types import AttributeValue, Span

_MOST_BIAS = 100.0
"""vLLM clamps biases to this."""
_SHAPING = (
    semconv.REQUEST_PRESENCE_PENALTY,
    semconv.REQUEST_FREQUENCY_PENALTY,
    semconv.REQUEST_REPETITION_PENALTY,
)
_OF_REQUEST = frozenset(
    (
        *_SHAPING,
        semconv.REQUEST_LOGIT_BIAS,
        semconv.REQUEST_UNKNOWN,
        semconv.REQUEST_TOP_P,
        semconv.REQUEST_TOP_K,
        semconv.REQUEST_MIN_P,
        semconv.REQUEST_STRUCTURED_OUTPUT,
        semconv.REQUEST_TOOL_CHOICE,
        semconv.REQUEST_MIN_TOKENS,
        semconv.REQUEST_ALLOWED_TOKEN_IDS,
        semconv.REQUEST_BAD_WORDS,
    )
)
_response_support = lru_cache(semconv.response_support)
_response_routed_experts = lru_cache(semconv.response_routed_experts)
_response_support_unknown = lru_cache(semconv.response_support_unknown)


class Asked(NamedTuple):
    """The request's sampling parameters."""

    shaping: Shaping | None = None
    narrowing: tuple[str, ...] = ()
    """Parameters that remove vocabulary entries, as ``name = value``."""
    beyond: tuple[str, ...] = ()
    """Parameters that change the distribution in ways that cannot be recomputed."""


_PLAIN = Asked()


def asked_of(attributes: Mapping[str, AttributeValue]) -> Asked:
    """Return the request's parameters, given by the conventions' names (``Dialect.request``); a value of the wrong type
    counts as absent, as everywhere."""
    if _OF_REQUEST.isdisjoint(attributes):
        return _PLAIN
    unknown = attributes.get(semconv.REQUEST_UNKNOWN)
    beyond = tuple(map(str, unknown)) if isinstance(unknown, tuple) else ()
    biases = _biases(attributes.get(semconv.REQUEST_LOGIT_BIAS))
    if biases is None:
        beyond, biases = (*beyond, f"logit_bias ({attributes[semconv.REQUEST_LOGIT_BIAS]})"[:200]), ()
    presence, frequency, repetition = (number(attributes, name) for name in _SHAPING)
    shaping = Shaping(biases, presence or 0.0, frequency or 0.0, 1.0 if repetition is None else repetition)
    return Asked(None if shaping.changes_nothing else shaping, tuple(_narrowing(attributes)), beyond)


def drawn_from(
    span: Span, choice: int, response_ids: Ids, complete: bool, asked: Asked, problems: list[str]
) -> tuple[Support | None, str | None]:
    """Return a choice's sampling distribution, or why it is unknown; neither if the choice is incomplete.

    Args:
        problems: gets a sentence if the record contradicts itself.
    """
    if not complete:
        return None, None  # the engine reports it at the end; such a call is not trained anyway
    attributes = span.attributes
    if asked.beyond:
        return None, f"the request asked for {', '.join(asked.beyond)}, which the trainer cannot compute"
    unknown = attributes.get(_response_support_unknown(choice))
    if isinstance(unknown, str):
        return None, unknown
    body = attributes.get(_response_support(choice))
    if body is not None:
        try:
            return _read(body, response_ids), None
        except ValueError as error:
            problems.append(f"span {span.span_id}: {_response_support(choice)}: {error}")
            return None, f"what was recorded of it contradicts itself: {error}"
    if asked.narrowing and attributes.get(semconv.SUPPORT_KNOWN) is not True:
        narrowing = ", ".join(asked.narrowing)
        return None, f"the request restricted it ({narrowing}), and the engine did not say what that left"
    return None, None


def experts_of(span: Span, choice: int, tokens: int, problems: list[str]) -> RoutedExperts | None:
    """Return the experts that prompt and response went through; None if not recorded, or contradictory.

    Args:
        tokens: number of prompt and response tokens.
        problems: gets a sentence if the record contradicts itself: the call is then trained without replay.
    """
    body = span.attributes.get(_response_routed_experts(choice))
    if not isinstance(body, bytes):
        return None
    try:
        experts = RoutedExperts.decode(body)
        if experts.end != tokens - 1:
            raise ValueError(f"they are of the first {experts.end} tokens, and all but the last of {tokens} have some")
    except ValueError as error:
        problems.append(f"span {span.span_id}: {_response_routed_experts(choice)}: {error}")
        return None
    return experts


def _read(body: AttributeValue, response_ids: Ids) -> Support:
    if not isinstance(body, bytes):
        raise ValueError(f"it is a {type(body).__name__}, not bytes")
    support = Support.decode(body)
    if len(support) != len(response_ids):
        raise ValueError(f"it is of {len(support)} tokens, and {len(response_ids)} were sampled")
    if (place := support.first_outside(response_ids)) is not None:
        raise ValueError(f"token {place} is {response_ids[place]}, which it says could not have been sampled")
    return support


def _narrowing(attributes: Mapping[str, AttributeValue]) -> Iterator[str]:
    top_p = number(attributes, semconv.REQUEST_TOP_P)
    top_k = number(attributes, semconv.REQUEST_TOP_K)
    min_p = number(attributes, semconv.REQUEST_MIN_P)
    temperature = number(attributes, semconv.REQUEST_TEMPERATURE)
    if temperature is None or temperature > 0:  # else vLLM is greedy, and ignores these
        if top_p is not None and top_p < 1:
            yield f"top_p = {top_p:g}"
        if top_k is not None and top_k > 0:
            yield f"top_k = {top_k:g}"
        if min_p is not None and min_p > 0:
            yield f"min_p = {min_p:g}"
    if min_tokens := number(attributes, semconv.REQUEST_MIN_TOKENS):
        yield f"min_tokens = {min_tokens:g}"
    for name, called in (
        (semconv.REQUEST_STRUCTURED_OUTPUT, "structured output"),
        (semconv.REQUEST_TOOL_CHOICE, "tool_choice"),
    ):
        if isinstance(value := attributes.get(name), str):
            yield f"{called} = {value}"
    for name, called in (
        (semconv.REQUEST_ALLOWED_TOKEN_IDS, "allowed_token_ids"),
        (semconv.REQUEST_BAD_WORDS, "bad_words"),
    ):
        if name in attributes:
            yield called


def _biases(value: AttributeValue | None) -> tuple[tuple[int, float], ...] | None:
    """Return the bias added to each logit, clamped as in vLLM; None if unreadable."""
    if value is None:
        return ()
    try:
        given = orjson.loads(value) if isinstance(value, str | bytes) else None
        read = {int(token): float(bias) for token, bias in given.items()}  # pyright: ignore[reportOptionalMemberAccess]
    except (ValueError, TypeError, AttributeError):
        return None
    return tuple(sorted((token, min(_MOST_BIAS, max(-_MOST_BIAS, bias))) for token, bias in read.items()))

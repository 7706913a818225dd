"""Exact tokens of a span: packed ids and log-probabilities, per choice, as the gateway and the client write them."""

from dataclasses import dataclass

from lightning_instrumentation import semconv
from lightning_instrumentation.packing import unpack_logprobs

from lightning_trainer.token_ids import Ids, TokenIds
from lightning_trainer.types import Span


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer, as recorded."""

    index: int
    response_ids: Ids
    logprobs: tuple[float, ...] | None
    finish_reason: str | None


@dataclass(frozen=True, slots=True)
class Tokens:
    """One model call, as recorded; ``problems`` names what could not be read."""

    prompt_ids: Ids
    choices: tuple[Choice, ...]
    problems: tuple[str, ...]


_FIRST_RESPONSE = semconv.response_token_ids(0)


def carries_tokens(span: Span) -> bool:
    """Whether the span itself has the ids of a call."""
    return semconv.PROMPT_TOKEN_IDS in span.attributes and _FIRST_RESPONSE in span.attributes


def read_tokens(span: Span) -> Tokens:
    """Read a span's tokens; what is missing or unreadable is empty, never guessed."""
    problems: list[str] = []
    finish_reasons = span.attributes.get(semconv.FINISH_REASONS)
    reasons = finish_reasons if isinstance(finish_reasons, tuple) else ()
    choices = []
    for index in range(_choice_count(span)):
        packed = _packed(span, semconv.response_logprobs(index), problems)
        choices.append(
            Choice(
                index=index,
                response_ids=TokenIds(_packed(span, semconv.response_token_ids(index), problems) or b""),
                logprobs=None if packed is None else unpack_logprobs(packed),
                finish_reason=str(reasons[index]) or None if index < len(reasons) else None,
            )
        )
    prompt_ids = TokenIds(_packed(span, semconv.PROMPT_TOKEN_IDS, problems) or b"")
    return Tokens(prompt_ids, tuple(choices), tuple(problems))


def _choice_count(span: Span) -> int:
    count = span.attributes.get(semconv.CHOICES, 1)
    if not isinstance(count, int) or count < 1:
        return 1
    # A count that nothing backs would only make work.
    return min(count, max(1, len(span.attributes)))


def _packed(span: Span, name: str, problems: list[str]) -> bytes | None:
    value = span.attributes.get(name)
    if value is None:
        return None
    if not isinstance(value, bytes) or len(value) % 4:
        size = f"{len(value)} bytes" if isinstance(value, bytes) else f"a {type(value).__name__}"
        problems.append(f"span {span.span_id}: {name} is {size}, not packed 4-byte values, and counts as missing")
        return None
    return value

"""Spans of whole attempts and of rewards, in a few words."""

import itertools
from array import array
from collections.abc import Callable

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.types import AttributeValue, Span, SpanEvent

_numbers = itertools.count(10**6)
_NAMES = {"rollout": semconv.ROLLOUT_ID, "attempt": semconv.ATTEMPT_ID, "response": semconv.RESPONSE_ID}


def _attempt_spans(attempt: str, prompt: list[int], start_ns: int) -> list[Span]:
    """Return an ended attempt of task ``t`` with one call of ``solver`` through the gateway."""
    own: dict[str, AttributeValue] = {
        semconv.ROLLOUT_ID: f"r-{attempt}",
        semconv.ATTEMPT_ID: attempt,
        semconv.TASK_ID: "t",
        semconv.AGENT_NAME: "solver",
    }
    call: dict[str, AttributeValue] = {
        **own,
        semconv.OPERATION: semconv.CHAT,
        semconv.RESPONSE_ID: f"response-{attempt}",
        semconv.POLICY: "math",
        semconv.POLICY_VERSION: 0,
        semconv.PROMPT_TOKEN_IDS: array("i", prompt).tobytes(),
        semconv.CHOICES: 1,
        semconv.response_token_ids(0): array("i", [7]).tobytes(),
        semconv.response_logprobs(0): array("f", [-0.5]).tobytes(),
    }
    trace_id, root_id, call_id = f"{next(_numbers):032x}", f"{next(_numbers):016x}", f"{next(_numbers):016x}"
    ended: dict[str, AttributeValue] = {**own, semconv.ROLLOUT_ROOT: True}
    return [
        Span(trace_id, root_id, None, "rollout", start_ns, start_ns + 5, ended),
        Span(trace_id, call_id, root_id, "chat", start_ns + 1, start_ns + 2, call, scope=semconv.GATEWAY_SCOPE),
    ]


def _reward_span(value: float, **about: str) -> Span:
    """Return an evaluation of a ``rollout``, an ``attempt`` or a ``response``."""
    number = next(_numbers)
    event = SpanEvent(
        semconv.EVALUATION_EVENT,
        number,
        {semconv.EVALUATION_NAME: "reward", semconv.EVALUATION_SCORE: value},
    )
    attributes: dict[str, AttributeValue] = {_NAMES[name]: text for name, text in about.items()}
    trace_id, span_id = f"{number:032x}", f"{number:016x}"
    return Span(trace_id, span_id, None, "evaluate reward", number, number, attributes, events=(event,))


@pytest.fixture(scope="session")
def attempt_spans() -> Callable[..., list[Span]]:
    """Make an ended attempt: ``attempt_spans(id, prompt, start_ns)``; its rollout is ``r-id``, its one response
    ``response-id``."""
    return _attempt_spans


@pytest.fixture(scope="session")
def reward_span() -> Callable[..., Span]:
    """Make a reward: ``reward_span(value, rollout=, attempt=, response=)``."""
    return _reward_span

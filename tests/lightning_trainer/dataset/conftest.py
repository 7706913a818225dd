"""Spans of small made-up rollouts."""

import json
from collections.abc import Callable, Sequence

import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.spans.packing import pack_logprobs, pack_token_ids

from lightning_trainer.types import Span, SpanEvent, SpanStatus


def _words(role: str, text: str) -> str:
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}])


def _attempt(
    name: str,
    number: int,
    *,
    reward: float | None,
    question: str = "2+3?",
    answer: str = "5",
    prompt: Sequence[int] = (1, 2),
    response: Sequence[int] = (3, 4),
    exact: bool = True,
    failed: bool = False,
    agent: str = "solver",
    group: str = "g",
    finish: str = "stop",
) -> list[Span]:
    """One attempt of one call: its root, the client's span and, where the call is exact, the gateway's record."""
    trace, base = f"{number:032x}", 100 * number
    identity = {
        semconv.ROLLOUT_ID: f"rollout-{name}",
        semconv.ATTEMPT_ID: name,
        semconv.TASK_ID: "t",
        semconv.GROUP_ID: group,
    }
    said = {
        semconv.OPERATION: semconv.CHAT,
        semconv.AGENT_NAME: agent,
        semconv.RESPONSE_ID: f"response-{name}",
        semconv.RESPONSE_MODEL: "m",
        semconv.FINISH_REASONS: (finish,),
        semconv.INPUT_MESSAGES: _words("user", question),
        semconv.OUTPUT_MESSAGES: _words("assistant", answer),
    }
    events = ()
    if reward is not None:
        score = {semconv.EVALUATION_NAME: "reward", semconv.EVALUATION_SCORE: reward}
        events = (SpanEvent(semconv.EVALUATION_EVENT, base + 90, score),)

    def span(offset: int, parent: int | None, title: str, attributes: dict, **more) -> Span:
        parent_id = None if parent is None else f"{base + parent:016x}"
        return Span(
            trace,
            f"{base + offset:016x}",
            parent_id,
            title,
            base + offset,
            base + 99 - offset,
            {**identity, **attributes},
            **more,
        )

    status = SpanStatus.ERROR if failed else SpanStatus.UNSET
    spans = [
        span(
            1, None, "rollout", {semconv.ROLLOUT_ROOT: True}, events=events, status=status, scope=semconv.CLIENT_SCOPE
        ),
        span(2, 1, "chat m", said, scope=semconv.CLIENT_SCOPE),
    ]
    if exact:
        tokens = {
            semconv.POLICY: "math",
            semconv.POLICY_VERSION: 3,
            semconv.CHOICES: 1,
            semconv.PROMPT_TOKEN_IDS: pack_token_ids(prompt),
            semconv.response_token_ids(0): pack_token_ids(response),
            semconv.response_logprobs(0): pack_logprobs([-0.5] * len(response)),
        }
        spans.append(span(3, 2, "gateway chat", {**said, **tokens}, scope=semconv.GATEWAY_SCOPE))
    return spans


@pytest.fixture(scope="session")
def attempt_spans() -> Callable[..., list[Span]]:
    """``attempt_spans(name, number, reward=, ...)``: an attempt of one call of ``solver`` in group ``g``."""
    return _attempt


@pytest.fixture
def two_attempts(attempt_spans) -> list[Span]:
    """A group that can be trained: two attempts at one task, one right and one wrong."""
    return [
        *attempt_spans("a1", 1, reward=1.0),
        *attempt_spans("a2", 2, reward=0.0, response=(5, 6, 7), answer="6"),
    ]

"""Factories of the vocabulary, with all that a test does not care about filled in; spans of whole attempts, and spans
as a collector's file exporter writes them.
"""

import base64
import functools
import itertools
import json
import sqlite3
from array import array
from collections.abc import Callable, Iterator, Sequence

import pytest
from lightning_instrumentation import runtime, semconv
from lightning_instrumentation.failures import failures

from lightning_trainer.config import PolicyConfig
from lightning_trainer.store import SqliteStore
from lightning_trainer.training.on_ray.environ import set_ray_environment
from lightning_trainer.types import (
    Attempt,
    AttemptState,
    AttributeValue,
    Call,
    Evaluation,
    Fidelity,
    Span,
    SpanEvent,
    SpanStatus,
    Trajectory,
    Transition,
)

set_ray_environment()  # some tests import verl by themselves, and with it Ray, which reads its environment then


@pytest.fixture(scope="session", autouse=True)
def disk_is_not_waited_for() -> Iterator[None]:
    """Stores of this process do not have each commit fsynced: a process that is killed loses nothing by that, and no
    test cuts the power (``store/test_durability.py`` looks what it is without this)."""
    connect = SqliteStore._connect

    @functools.wraps(connect)
    def connected(store: SqliteStore) -> sqlite3.Connection:
        connection = connect(store)
        connection.execute("PRAGMA synchronous=OFF")
        return connection

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqliteStore, "_connect", connected)
        yield


@pytest.fixture(scope="module", autouse=True)
def no_client_of_another_file() -> None:
    """Whoever waits for what the client sends would wait in vain, for the daemon of a test that has ended; what it did
    not capture there would be sent by the next client, too."""
    if runtime._runtime is not None:
        runtime.shutdown(0)
    failures.in_child()


_numbers = itertools.count(10**6)
_NAMES = {"rollout": semconv.ROLLOUT_ID, "attempt": semconv.ATTEMPT_ID, "response": semconv.RESPONSE_ID}


def _call(span: str, prompt=(1, 2), response=(3, 4), *, choice: int = 0, start: int = 0, **changes) -> Call:
    fields = {
        "call_id": f"{span}/{choice}",
        "trace_id": "0" * 32,
        "span_id": span,
        "parent_span_id": f"chat-{span}",
        "response_id": f"response-{span}",
        "agent": "solver",
        "rollout_id": "rollout-a1",
        "attempt_id": "a1",
        "policy": "math",
        "policy_version": 0,
        "prompt_ids": tuple(prompt),
        "response_ids": tuple(response),
        "behavior_logprobs": tuple(-0.5 for _ in response),
        "finish_reason": "stop",
        "complete": True,
        "start_ns": start,
        "end_ns": start + 1,
        "fidelity": Fidelity.EXACT,
    }
    if "attempt_id" in changes:
        fields["rollout_id"] = f"rollout-{changes['attempt_id']}"
    return Call(**{**fields, **changes})


def _attempt(attempt_id: str = "a1", **changes) -> Attempt:
    fields = {
        "attempt_id": attempt_id,
        "rollout_id": f"rollout-{attempt_id}",
        "task_id": "t",
        "group_id": "g",
        "state": AttemptState.SUCCEEDED,
        "started_ns": 0,
        "ended_ns": 100,
    }
    return Attempt(**{**fields, **changes})


def _evaluation(value: float | None, attempt_id: str | None = "a1", **changes) -> Evaluation:
    fields = {
        "name": "reward",
        "value": value,
        "rollout_id": None if attempt_id is None else f"rollout-{attempt_id}",
        "attempt_id": attempt_id,
        "span_id": None,
        "time_ns": 50,
    }
    return Evaluation(**{**fields, **changes})


def _policy(**changes) -> PolicyConfig:
    return PolicyConfig.model_validate({"name": "math", "agents": ("solver",), "model": "random:tiny", **changes})


def _transition(name: str, prompt=(1, 2), response=(3, 4), **changes) -> Transition:
    fields = {
        "transition_id": name,
        "agent": "solver",
        "attempt_id": "a1",
        "policy": "math",
        "policy_version": 0,
        "prompt_ids": tuple(prompt),
        "response_ids": tuple(response),
        "behavior_logprobs": tuple(-0.5 for _ in response),
        "reward": None,
        "start_ns": 0,
    }
    return Transition(**{**fields, **changes})


def _trajectory(*transitions: Transition, reward: float | None = None, attempt: Attempt | None = None) -> Trajectory:
    return Trajectory(attempt or _attempt(), "solver", "math", transitions, reward)


@pytest.fixture(scope="session")
def make_call() -> Callable[..., Call]:
    """Make a call of ``solver`` in attempt ``a1``: ``make_call(span, prompt, response, choice=, start=, ...)``."""
    return _call


@pytest.fixture(scope="session")
def make_attempt() -> Callable[..., Attempt]:
    """Make an ended attempt of task ``t`` in group ``g``: ``make_attempt(id, ...)``."""
    return _attempt


@pytest.fixture(scope="session")
def make_evaluation() -> Callable[..., Evaluation]:
    """Make a reward: ``make_evaluation(value, attempt_id, ...)``."""
    return _evaluation


@pytest.fixture(scope="session")
def make_policy() -> Callable[..., PolicyConfig]:
    """Make policy ``math``, which claims ``solver``: ``make_policy(setting=...)``."""
    return _policy


@pytest.fixture(scope="session")
def make_transition() -> Callable[..., Transition]:
    """Make a transition: ``make_transition(id, prompt, response, ...)``."""
    return _transition


@pytest.fixture(scope="session")
def make_trajectory() -> Callable[..., Trajectory]:
    """Make a trajectory of ``solver``: ``make_trajectory(transition, ..., reward=, attempt=)``."""
    return _trajectory


def _attempt_spans(
    attempt: str, prompt: list[int], start_ns: int, *, task: str = "t", version: int = 0, group: str | None = None
) -> list[Span]:
    """Return an ended attempt of a task with one call of ``solver`` through the gateway."""
    own: dict[str, AttributeValue] = {
        semconv.ROLLOUT_ID: f"r-{attempt}",
        semconv.ATTEMPT_ID: attempt,
        semconv.TASK_ID: task,
        semconv.AGENT_NAME: "solver",
        **({} if group is None else {semconv.GROUP_ID: group}),
    }
    call: dict[str, AttributeValue] = {
        **own,
        semconv.OPERATION: semconv.CHAT,
        semconv.RESPONSE_ID: f"response-{attempt}",
        semconv.POLICY: "math",
        semconv.POLICY_VERSION: version,
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


_STATUS = {SpanStatus.UNSET: 0, SpanStatus.OK: 1, SpanStatus.ERROR: 2}


def _any_value(value: AttributeValue) -> dict:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case bytes():
            return {"bytesValue": base64.b64encode(value).decode()}
        case tuple():
            return {"arrayValue": {"values": [_any_value(one) for one in value]}}
    return {"stringValue": value}


def _attributes(attributes) -> list[dict]:
    return [{"key": name, "value": _any_value(value)} for name, value in attributes.items()]


def _line(spans: Sequence[Span]) -> str:
    """One document, written by hand from the specification: not by the code that is tested, nor by protobuf's JSON."""
    return json.dumps(
        {
            "resourceSpans": [
                {
                    "resource": {"attributes": _attributes(span.resource)},
                    "scopeSpans": [
                        {
                            "scope": {"name": span.scope},
                            "spans": [
                                {
                                    "traceId": span.trace_id,
                                    "spanId": span.span_id,
                                    "parentSpanId": span.parent_span_id or "",
                                    "name": span.name,
                                    "kind": 1,
                                    "startTimeUnixNano": str(span.start_ns),
                                    "endTimeUnixNano": str(span.end_ns),
                                    "attributes": _attributes(span.attributes),
                                    "events": [
                                        {
                                            "name": event.name,
                                            "timeUnixNano": str(event.time_ns),
                                            "attributes": _attributes(event.attributes),
                                        }
                                        for event in span.events
                                    ],
                                    "status": {"code": _STATUS[span.status], "message": span.status_message},
                                }
                            ],
                        }
                    ],
                }
                for span in spans
            ]
        }
    )


@pytest.fixture(scope="session")
def otlp_line() -> Callable[[Sequence[Span]], str]:
    """``otlp_line(spans)``: one line of OTLP JSON, without its line end."""
    return _line

"""Factories of the vocabulary with everything that a test does not care about filled in."""

from collections.abc import Callable

import pytest

from lightning_trainer.config import PolicyConfig
from lightning_trainer.types import Attempt, AttemptState, Call, Evaluation, Fidelity, Trajectory, Transition


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
        "behaviour_logprobs": tuple(-0.5 for _ in response),
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
        "behaviour_logprobs": tuple(-0.5 for _ in response),
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

"""What goes wrong in an attempt is data: a sentence, a missing reward, and the next attempt."""

import json
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import lightning_instrumentation as lt
import numpy as np
import pytest
from lightning_instrumentation.scope import current

from lightning_trainer.rollouts.attempt import AttemptEnded, AttemptFunction, as_json, run_attempt


@dataclass(frozen=True)
class Question:
    id: str


@pytest.fixture(autouse=True)
def recording(tmp_path: Path) -> Iterator[None]:
    """The client with nobody to send to: spans wait in a folder of the test's own."""
    lt.shutdown(0)
    lt.init("http://127.0.0.1:9", spool_dir=tmp_path)
    yield
    lt.shutdown(0)


def run(attempt: AttemptFunction[Question], timeout_s: float = 30.0) -> AttemptEnded:
    return run_attempt(attempt, Question("q"), stage="train", step=1, group_id="g", mode="train", timeout_s=timeout_s)


def test_an_attempt_returns_its_reward():
    ended = run(lambda task: 0.5)
    assert (ended.task_id, ended.reward, ended.error) == ("q", 0.5, None)


def test_an_attempt_that_nothing_scored_has_no_reward():
    ended = run(lambda task: None)
    assert (ended.reward, ended.error) == (None, None)


def test_an_agent_that_raises_has_failed_and_the_run_goes_on():
    def agent(task: Question) -> float:
        raise KeyError("parcel")

    ended = run(agent)
    assert (ended.reward, ended.error) == (None, "KeyError: 'parcel'")
    assert run(lambda task: 1.0).reward == 1.0


def test_a_tool_that_hangs_is_given_up_after_the_limit():
    released = threading.Event()
    ended = run(lambda task: float(released.wait(60)), timeout_s=0.1)
    released.set()
    assert ended.reward is None
    assert ended.error == "TimeoutError: the attempt did not end within 0.1 s"


@pytest.mark.parametrize("value", [math.nan, math.inf, 1.7e308])
def test_a_reward_that_is_no_number_is_missing(value: float):
    ended = run(lambda task: value)
    assert ended.reward is None
    assert ended.error == f"the reward is {value}; it must be a number between -1e+09 and 1e+09, or None"


@pytest.mark.parametrize("value", ["1", {"score": 1.0}, [1.0, 0.0], 10**400])
def test_a_reward_of_another_type_is_missing_and_the_sentence_says_which(value: object):
    ended = run(lambda task: cast("float", value))
    assert ended.reward is None
    assert ended.error is not None
    assert ended.error.startswith(f"the reward is {value!r}"[:100])
    assert ended.error.endswith("; it must be a number between -1e+09 and 1e+09, or None")


@pytest.mark.parametrize("value", [True, np.float32(0.5), np.array([0.25]), np.bool_(False)])
def test_a_number_of_another_type_is_a_reward(value: float):
    ended = run(lambda task: value)
    assert (ended.reward, ended.error) == (float(value), None)
    assert json.loads(json.dumps(as_json(ended)))["reward"] == float(value)


@pytest.mark.parametrize("limit", [math.inf, 1e12])
def test_an_attempt_may_take_forever(limit: float):
    async def coroutine(task: Question) -> float:
        return 0.5

    assert (run(lambda task: 1.0, limit).error, run(coroutine, limit).error) == (None, None)


@dataclass(frozen=True)
class QuestionWithAnswer:
    id: str
    input: dict


def test_what_a_task_has_as_its_input_is_recorded_with_the_rollout(tmp_path: Path):
    asked = QuestionWithAnswer("q", {"question": "Which color?", "answer": "blue"})
    ended = run_attempt(lambda task: None, asked, stage="train", step=1, group_id="g", mode="train", timeout_s=30.0)
    assert ended.error is None
    lt.shutdown(0)
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert rb'{"question": "Which color?", "answer": "blue"}' in written


def test_a_rollout_of_the_agents_own_is_the_attempt_and_its_mode_the_runners(tmp_path: Path):
    """Before, calls and rewards in it were another attempt's, of mode ``train``: an evaluation was trained on."""
    seen = []

    def agent(task: Question) -> None:
        seen.append(current().identity)
        with lt.rollout("where-is-my-parcel", rollout_id="ticket-4711"):
            seen.append(current().identity)
            lt.reward(1.0)

    ended = run_attempt(
        agent, Question("q"), stage="held-out", step=None, group_id="g", mode="evaluate", timeout_s=30.0
    )
    assert ended.error is None
    attempt, inside = seen
    assert (attempt.task_id, attempt.mode) == ("q", "evaluate")
    assert inside == attempt
    lt.shutdown(0)
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert written.count(b"lightning.rollout.root") == 1
    assert b"ticket-4711" not in written

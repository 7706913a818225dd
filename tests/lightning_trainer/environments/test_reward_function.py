"""A reward function as an environment: what it is given by the names of its parameters, and what it may return."""

import asyncio
import json
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import lightning_instrumentation as lt
import numpy
import pytest

from lightning_trainer.environments.errors import EnvironmentDiedError, EnvironmentRaisedError, EnvironmentTimeoutError
from lightning_trainer.environments.limits import Limits
from lightning_trainer.environments.protocol import Action, Observation, Step, Task
from lightning_trainer.environments.reward_function import RewardFunction, score
from lightning_trainer.environments.session import Session
from lightning_trainer.environments.task_fields import field_of, stable_form
from lightning_trainer.errors import ConfigError, LightningError
from lightning_trainer.rollouts import Runner

ENDPOINT = "http://127.0.0.1:9"
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
ROW = {
    "data_source": "sums",
    "prompt": ASKED,
    "reward_model": {"style": "rule", "ground_truth": "4"},
    "extra_info": {"level": 1},
    "solution": "four",
}


def given(function: Callable[..., Any], row: dict[str, Any] = ROW, **options: Any) -> Step:
    """Return what an answer of "4" earns."""
    environment = RewardFunction(function, **options)
    environment.reset(Task("e", "1", name="t", fields=row))
    return environment.step(Action("4"))


def test_verls_names() -> None:
    def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
        assert (data_source, solution_str, ground_truth, extra_info) == ("sums", "4", "4", {"level": 1})
        assert kwargs == {"strict": True}
        return {"score": 1.0, "acc": True, "pred": "4", "length": 1, "reward": 9.0, "lost": float("nan")}

    assert given(compute_score, strict=True) == Step(Observation(), 1.0, True, {"acc": 1.0, "length": 1.0})


def test_extra_info_is_empty_where_the_task_has_none_as_in_verl() -> None:
    def compute_score(data_source, solution_str, ground_truth, extra_info):
        return len(extra_info)

    row = {"data_source": "s", "prompt": "?", "ground_truth": "4"}
    assert given(compute_score, row).reward == 0.0


def test_skyrls_place_of_the_right_answer() -> None:
    def right(solution_str, ground_truth):
        return solution_str == ground_truth

    assert given(right, {"prompt": "?", "reward_spec": {"ground_truth": "4"}}).reward == 1.0


def test_trls_names() -> None:
    told: list[dict[str, Any]] = []

    def all_of_it(prompts, completions, **kwargs):
        told.append({"prompts": prompts, "completions": completions, **kwargs})
        return [0.5]

    def one_column(completions, solution, weight=1.0):
        return [weight if completions[0][0]["content"] == "4" and solution == ["four"] else 0.0]

    assert given(all_of_it).reward == 0.5
    columns = {name: [value] for name, value in ROW.items() if name != "prompt"} | {"ground_truth": ["4"]}
    assert told == [{"prompts": [ASKED], "completions": [[{"role": "assistant", "content": "4"}]], **columns}]
    assert given(one_column, weight=0.25).reward == 0.25


def test_trls_completions_are_text_where_the_prompt_is() -> None:
    def exact(completions, prompts):
        return [float((prompts, completions) == (["2+2?"], ["4"]))]

    assert given(exact, {"prompt": "2+2?"}).reward == 1.0


def test_openais_names() -> None:
    def grade(sample, item):
        return float((sample["output_text"], sample["output_json"], item) == ("4", 4, ROW))

    assert given(grade).reward == 1.0


def test_a_coroutine_function_is_awaited_also_below_an_event_loop() -> None:
    async def compute_score(solution_str, ground_truth):
        await asyncio.sleep(0)
        return float(solution_str == ground_truth)

    async def below() -> Step:
        return given(compute_score)

    assert given(compute_score).reward == asyncio.run(below()).reward == 1.0


@pytest.mark.parametrize(("said", "reward"), [(None, None), (True, 1.0), (2, 2.0), ({"score": None}, None)])
def test_what_is_a_reward(said: object, reward: float | None) -> None:
    assert given(lambda solution_str: said).reward == reward
    assert given(lambda completions: [said]).reward == reward


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda solution_str: "good", "returned 'good'; a reward is a number, None, or an object with a 'score'"),
        (lambda solution_str: float("nan"), "returned nan; a reward is a number"),
        (lambda solution_str: {"acc": 1.0}, "returned {'acc': 1.0}; an object has the reward as its 'score'"),
        (lambda completions: 1.0, "returned 1.0; of one completion it returns one reward"),
        (lambda completions: [1.0, 0.0], r"returned \[1.0, 0.0\]; of one completion it returns one reward"),
        (lambda solution_str, answer: 1.0, "takes answer, which the task does not have; it has .data_source, prompt"),
        (lambda completions, answer: [1.0], "takes answer, which the task does not have"),
    ],
)
def test_what_is_none_is_one_sentence(function: Callable[..., Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        given(function)


@pytest.mark.parametrize("function", [lambda text, truth: 1.0, lambda prompts: [1.0]])
def test_a_function_that_does_not_take_the_answer_is_none(function: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="takes the model's answer as one of solution_str, completions, sample"):
        Runner.from_environment(function, policy="p", agent=lambda session: None, endpoint=ENDPOINT)


def test_an_option_that_the_function_does_not_take_is_refused() -> None:
    with pytest.raises(TypeError, match=r"takes \(solution_str\), and not strict"):
        RewardFunction(lambda solution_str: 1.0, strict=True)


def test_a_score_has_its_reason() -> None:
    said = score(lambda solution_str: {"score": 0.5, "reason": "half"}, {}, "?", "4")
    assert (said.value, said.others, said.reason) == (0.5, {}, "half")


def test_a_field_has_its_own_name_or_is_inside_of_another() -> None:
    fields = {"a": {"b": {"c": 1}, "none": None}, "a.b": 2}
    assert [field_of(fields, name) for name in ("a.b", "a.b.c", "a.none", "a.d", "a.none.e")] == [
        2,
        1,
        None,
        None,
        None,
    ]
    assert [field_of(fields, name, "?") for name in ("a.none", "a.d", "a.none.e", "b", "a.")] == [None, *"????"]


PICTURE = "data:image/png;base64,QQ=="


@pytest.mark.parametrize(
    ("row", "observation"),
    [
        ({"prompt": "2+2?", "question": "no"}, Observation("2+2?")),
        ({"prompt": ASKED}, Observation("2+2?", instructions="Be brief.")),
        ({"question": "2+2?"}, Observation("2+2?")),
        ({"messages": [*ASKED, {"role": "assistant", "content": "4"}]}, Observation("2+2?", instructions="Be brief.")),
        (
            {"prompt": [*ASKED, {"role": "assistant", "content": "4"}, {"role": "user", "content": "3+3?"}]},
            Observation("user: 2+2?\n\nassistant: 4\n\nuser: 3+3?", instructions="Be brief."),
        ),
        (
            {"prompt": [{"role": "user", "content": [
                {"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": PICTURE}},
            ]}]},
            Observation("What is it?", images=(PICTURE,)),
        ),
    ],
)  # fmt: skip
def test_the_prompt_is_what_the_model_is_told(row: dict[str, Any], observation: Observation) -> None:
    environment = RewardFunction(lambda solution_str: 1.0)
    assert environment.reset(Task("e", "1", name="t", fields=row)) == observation


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"text": "2+2?"}, r"none of prompt, messages, question; it has \(text\), and tasks .* come from a file"),
        ({"prompt": 7}, "the task's prompt is 7; it must be text, or messages, each with a role"),
        ({"prompt": ["2+2?"]}, "it must be text, or messages"),
    ],
)
def test_a_task_without_a_prompt_is_one_sentence(row: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        RewardFunction(lambda solution_str: 1.0).reset(Task("e", "1", name="t", fields=row))


def says_four(session: Session) -> None:
    session.say("4")


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float(solution_str == ground_truth)


MISBEHAVING = """
import os, time

def compute_score(solution_str, ground_truth, how="well"):
    if how == "hangs":
        time.sleep(600)
    if how == "dies":
        os._exit(3)
    return {"score": 1 / (how != "raises"), "length": len(solution_str)}
"""


def test_a_function_in_this_process_scores_rows_of_a_dataset(recording) -> None:
    with Runner.from_environment(compute_score, policy="p", agent=says_four, endpoint=ENDPOINT) as runner:
        right, wrong = runner.evaluate([ROW, {**ROW, "id": "hard", "ground_truth": "5"}], stage="e")
        assert (right.reward, wrong.reward) == (1.0, 0.0)
        assert wrong.task_id == f"compute_score@{runner.environment.version}#hard"
        with pytest.raises(LightningError, match="compute_score has no held-out tasks of its own; give it some"):
            runner.evaluate_held_out(8)


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("well", None),
        ("raises", EnvironmentRaisedError),
        ("hangs", EnvironmentTimeoutError),
        ("dies", EnvironmentDiedError),
    ],
)
def test_a_function_in_a_file_has_the_limits_of_any_environment(
    how: str, error: type[Exception] | None, tmp_path: Path, recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[float, str]] = []
    monkeypatch.setattr(lt, "reward", lambda value, name="reward", **_: given.append((value, name)))
    (tmp_path / "rewards.py").write_text(MISBEHAVING)
    name = f"{tmp_path}/rewards.py:compute_score?how={how}"
    options = {"policy": "p", "agent": says_four, "endpoint": ENDPOINT, "limits": Limits(step_timeout_s=0.5)}
    with Runner.from_environment(name, **options) as runner:
        (ended,) = runner.evaluate([ROW], stage="e")
    assert (ended.error or "").partition(":")[0] == ("" if error is None else error.__name__)
    assert ended.reward == (1.0 if error is None else None)
    assert sorted(given) == ([(1.0, "length"), (1.0, "reward")] if error is None else [])


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("compute_score:hard", "compute_score is a function, which has no variant 'hard'"),
        ("compute_score?strict=1", "compute_score takes .solution_str, ground_truth, how., and not strict"),
    ],
)
def test_a_name_that_does_not_fit_the_function_is_one_sentence(name: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text(MISBEHAVING)
    with pytest.raises(EnvironmentRaisedError, match=sentence):
        Runner.from_environment(f"{tmp_path}/rewards.py:{name}", policy="p", agent=says_four, endpoint=ENDPOINT)


class _Picture:
    """What is read of a picture of Pillow's; its text says where it is in memory."""

    def __init__(self, pixels: bytes) -> None:
        self._pixels = pixels

    def tobytes(self) -> bytes:
        return self._pixels


def test_what_a_row_holds_that_is_no_json_has_the_same_form_in_every_process() -> None:
    def form(value: Any) -> str:
        return json.dumps(value, default=stable_form)

    day, words = date(2026, 11, 28), ["a", "b", "c", "d", "e"]
    assert form([day, b"x", Decimal("1.50")]) == json.dumps(["2026-11-28", "b'x'", "1.50"])
    assert form(set(words)) == form(frozenset(words)) == json.dumps(words)
    assert form({1, "a", None}) == form({None, "a", 1})
    assert form(numpy.arange(3)) == form(numpy.arange(3).astype(object)) == "[0, 1, 2]"
    assert form(_Picture(b"red")) == form(_Picture(b"red")) != form(_Picture(b"blue"))
    assert form(object()) == form(object()) == '"<object object>"'
    assert form({"in": [len, object()]}) == form({"in": [len, object()]})

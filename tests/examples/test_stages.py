"""examples/stages: a stage trains the reward that it is named for, and an action is worth what it did."""

import runpy
import sys
from pathlib import Path
from typing import Any

import lightning_instrumentation as lt
import pytest

from lightning_trainer.config.file import load_config
from lightning_trainer.rollouts import Runner
from tests.lightning_trainer.environments.openai_server import serving  # pyright: ignore[reportMissingImports]

FOLDER = Path(__file__).parents[2] / "examples" / "stages"
ENDPOINT = "http://127.0.0.1:9"


@pytest.fixture
def example(bare_names: None) -> dict[str, Any]:
    return runpy.run_path(str(FOLDER / "train.py"))


def test_format_comes_first_then_actions_then_the_task() -> None:
    policy = load_config(FOLDER / "lightning.toml").policy[0]
    wait, imitation, actions, task = (policy.at_step(step) for step in (1, 2, 5, 13))
    assert [stage.steps for stage in policy.stage] == [1, 3, 8, None]
    assert imitation.algorithm.objective == "sft"
    assert policy.stage[1].data is not None
    assert [one.algorithm.objective for one in (wait, actions, task)] == ["rl"] * 3
    assert (actions.credit.scheme, set(actions.reward_weights)) == ("steps", {"action"})
    assert (task.credit.scheme, set(task.reward_weights)) == ("terminal", {"reward"})


@pytest.mark.parametrize(
    ("said", "right", "worth"),
    [
        ("search: PERSON", "search: PERSON", 1.0),
        ("Search: where PERSON lives", "search: PERSON", 1.0),  # it finds the same
        ("search: nobody", "search: PERSON", 0.2),
        ("answer: PERSON", "search: PERSON", 0.0),
        ("answer: Kelonia", "answer: Kelonia", 1.0),
        ("answer: Baravia", "answer: Kelonia", 0.2),
        ("search: Kelonia", "answer: Kelonia", 0.0),
        ("", "search: PERSON", 0.0),
        ("PERSON", "search: PERSON", 0.0),
        ("answer: Kelonia", None, 0.0),
    ],
)
def test_an_action_is_worth_what_it_did(example, said: str, right: str | None, worth: float) -> None:
    person = sys.modules["corpus"].people()[0].name
    assert example["worth"](said.replace("PERSON", person), right and right.replace("PERSON", person)) == worth


@pytest.mark.long
def test_each_call_in_training_is_rewarded_and_held_out_questions_by_their_answer_alone(
    bare_names, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr("lightning_trainer.rollouts.daemon_client.DaemonClient.wait_until_there", lambda _: None)
    monkeypatch.setenv("LIGHTNING_ENDPOINT", ENDPOINT)
    lt.shutdown(0)
    lt.init(ENDPOINT, spool_dir=tmp_path)
    given: list[tuple[float, str, str]] = []
    monkeypatch.setattr(lt, "reward", lambda value, name, *, response_id: given.append((value, name, response_id)))
    outcomes: list[float] = []

    def train(runner: Any, of_step: Any, steps: int) -> None:
        assert given == []
        trained.extend(of_step(5))
        outcomes.extend(runner._attempt(task) for task in trained)

    trained: list[Any] = []
    monkeypatch.setattr(Runner, "train", train)
    monkeypatch.setattr(sys, "argv", ["train.py", "--heldout", "3", "--concurrency", "1"])

    def answers(request: dict[str, Any]) -> dict[str, Any]:
        """The expert in training, but for the first task; nothing of the form elsewhere."""
        said = [message["content"] for message in request["messages"]]
        for task in trained[1:]:
            if task.question in said:
                place = (len(said) - 1 - said.index(task.question)) // 2
                return {"content": sys.modules["expert"].actions(task)[place]}
        return {"content": "garbled"}

    with serving(answers) as (url, requests):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", "unused")
        runpy.run_path(str(FOLDER / "train.py"), run_name="__main__")
    lt.shutdown(0)
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("before", "after"))]
    assert printed == ["before: 0 of 3 held-out questions answered", "after: 0 of 3 held-out questions answered"]
    assert outcomes == [0.0] + [1.0] * 7
    assert [value for value, _, _ in given] == [0.0] + [1.0] * (3 * len(trained[1:]))
    assert {name for _, name, _ in given} == {"action"}
    assert [response for _, _, response in given] == [f"call-{number}" for number in range(4, len(given) + 4)]
    assert len(requests) == 3 + len(given) + 3

"""examples/distil: what the expert shows is right, in the words that the agent is asked in, and of training alone."""

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning_instrumentation as lt
import pytest

from lightning_trainer.config.file import load_config
from lightning_trainer.dataset.demonstrations import read_demonstrations
from lightning_trainer.models.resolve import model_cache, resolve_model
from lightning_trainer.retokenize.tokenizer import PolicyTokenizer
from lightning_trainer.rollouts import Runner
from tests.lightning_trainer.environments.openai_server import serving  # pyright: ignore[reportMissingImports]

pytestmark = pytest.mark.process

EXAMPLES = Path(__file__).parents[2] / "examples"
ENDPOINT = "http://127.0.0.1:9"


@pytest.fixture
def expert(bare_names) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / "distil" / "expert.py"))


@pytest.fixture
def demonstrations(expert, tmp_path: Path) -> Path:
    path = tmp_path / "demonstrations.jsonl"
    expert["write"](path)
    return path


def test_the_expert_is_right_at_every_question_of_its_own(expert) -> None:
    asked = expert["train_tasks"](0, expert["QUESTIONS"])
    assert {task.asked for task in asked} == {"country", "river"}
    for task in asked:
        calls = expert["trace"](task)
        assert [call["completion"][0]["content"] for call in calls] == list(expert["actions"](task))
        assert len(calls) == 3
        assert task.answer in calls[-1]["prompt"][-1]["content"]  # it was found, and not only known


def test_a_wrong_trace_is_not_shown(expert, monkeypatch) -> None:
    (task, *_) = expert["train_tasks"](0, 1)
    for script in (("answer: Nowhere",), ("search: nothing",) * 4, ("I do not know.",)):
        monkeypatch.setitem(expert["trace"].__globals__, "actions", lambda task, script=script: script)
        assert expert["trace"](task) == []


def test_demonstrations_are_of_training_alone_and_make_the_steps_of_a_stage(expert, demonstrations: Path) -> None:
    lines = demonstrations.read_text().splitlines()
    held_out = [one for one in expert["people"]() if one.held_out]
    rows = [json.loads(line) for line in lines]
    shown = {one["content"] for row in rows for one in row["prompt"] + row["completion"]}
    assert not any(one.name in text or one.town in text or one.country in text for one in held_out for text in shown)
    wait, imitation, rl = load_config(EXAMPLES / "distil" / "lightning.toml").policy[0].stage
    assert (wait.data, wait.steps, rl.data, rl.steps) == (None, 1, None, None)
    assert imitation.data is not None
    assert imitation.data.read_text() == demonstrations.read_text()  # what is there is what the expert says
    assert imitation.steps == 2 * len(rows) // imitation.batch_size


def test_a_stage_reads_them_and_they_fit_into_a_sample(demonstrations: Path) -> None:
    policy = load_config(EXAMPLES / "distil" / "lightning.toml").policy[0]
    model = resolve_model(policy.model, model_cache())
    rows = read_demonstrations(demonstrations, "sft", 49_152, lambda: PolicyTokenizer(model))
    assert max(len(row.prompt_ids) for row in rows) <= 500
    assert max(len(row.answers[0]) for row in rows) <= 16


def test_it_asks_the_same_before_and_after(expert, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("lightning_trainer.rollouts.daemon_client.DaemonClient.wait_until_there", lambda _: None)
    monkeypatch.setenv("LIGHTNING_ENDPOINT", ENDPOINT)
    lt.shutdown(0)
    lt.init(ENDPOINT, spool_dir=tmp_path)
    trained: list[Any] = []
    monkeypatch.setattr(Runner, "train", lambda self, of_step, steps: trained.extend(of_step(2)))
    monkeypatch.setattr(sys, "argv", ["train.py", "--heldout", "4", "--concurrency", "2"])
    tasks = expert["train_tasks"].__globals__["heldout_tasks"](4)

    def answers(request: dict[str, Any]) -> dict[str, Any]:
        asked = {task.question: task for task in tasks}
        task = next(asked[one["content"]] for one in request["messages"] if one["content"] in asked)
        return {"content": "garbled" if task == tasks[0] else f"answer: {task.answer}"}

    with serving(answers) as (url, requests):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", "unused")
        runpy.run_path(str(EXAMPLES / "distil" / "train.py"), run_name="__main__")
    lt.shutdown(0)
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("before", "after"))]
    assert printed == [
        "before: 3 of 4 held-out questions answered",
        "after: 3 of 4 held-out questions answered",
    ]
    assert {request["model"] for request in requests} == {"distil"}
    assert len(trained) == 8
    assert {task.id for task in trained}.isdisjoint(task.id for task in expert["train_tasks"](0, expert["QUESTIONS"]))


def test_the_expert_writes_the_file_that_it_is_told_to(tmp_path: Path) -> None:
    path = tmp_path / "demonstrations.jsonl"
    command = [sys.executable, str(EXAMPLES / "distil" / "expert.py"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"144 demonstrations in {path}\n"
    assert done.stderr == ""
    assert len(path.read_text().splitlines()) == 144

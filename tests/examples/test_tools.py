"""examples/tools: tasks are made of a server's tools alone; who calls them is right, and who guesses is not."""

import json
import re
import runpy
import sys
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import lightning_instrumentation as lt
import pytest

from lightning_trainer.config.file import load_config
from lightning_trainer.dataset.demonstrations import read_demonstrations
from lightning_trainer.models.resolve import model_cache, resolve_model
from lightning_trainer.retokenize.tokenizer import PolicyTokenizer
from lightning_trainer.rollouts import Runner
from lightning_trainer.rollouts.step_runner import StepRunner
from tests.lightning_trainer.environments.openai_server import serving  # pyright: ignore[reportMissingImports]

pytestmark = pytest.mark.process

FOLDER = Path(__file__).parents[2] / "examples" / "tools"
ENDPOINT = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def example(bare_names) -> dict[str, Any]:
    """What train.py has."""
    sys.path.insert(0, str(FOLDER))
    return runpy.run_path(str(FOLDER / "train.py"))


@pytest.fixture(scope="module")
def tasks(example) -> Any:
    return example["made"](example["SERVER"])


@pytest.fixture(scope="module")
def again(example, tmp_path_factory) -> tuple[Any, Path]:
    """The same tasks, made once more, and with demonstrations; each time a server is asked for all that it tells."""
    demonstrations = tmp_path_factory.mktemp("again") / "again.jsonl"
    return example["made"](example["SERVER"], demonstrations), demonstrations


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No daemon: what is recorded waits on disk."""
    monkeypatch.setattr("lightning_trainer.rollouts.daemon_client.DaemonClient.wait_until_there", lambda _: None)
    monkeypatch.setenv("LIGHTNING_ENDPOINT", ENDPOINT)
    lt.shutdown(0)
    lt.init(ENDPOINT, spool_dir=tmp_path)
    yield
    lt.shutdown(0)


@pytest.fixture
def play(example, tasks, recording):
    """``play(model, tasks)`` returns what the attempts of the example's agent earn, and the requests that it made."""

    def played(model, asked) -> tuple[list[float | None], list[dict[str, Any]]]:
        with serving(model) as (url, requests):
            options = {"base_url": url, **example["AGENT"]}
            with Runner.from_environment("mcp", policy="tools", agent_options=options, concurrency=2) as runner:
                named = [runner.environment.named_task(task.id, task.fields) for task in asked]
                ended = runner.evaluate(named, stage="before")
        assert [attempt.error for attempt in ended] == [None] * len(ended)
        return [attempt.reward for attempt in ended], requests

    return played


def calls_what_it_is_asked(request: dict[str, Any]) -> dict[str, Any]:
    """Stands in for the model: the parcel, then the courier where that is asked for, then the value."""
    *_, question = (place for place, one in enumerate(request["messages"]) if one["role"] == "user")
    asked, *since = request["messages"][question:]
    results = [json.loads(one["content"]) for one in since if one["role"] == "tool"]
    key = re.findall(r"What is the (.+)\?", asked["content"])[0].replace(" ", "_")
    if not results:
        return called("parcel", number=int(re.findall(r"\d+", asked["content"])[0]))
    if key in results[-1]:
        return {"content": str(results[-1][key])}
    return called("courier", courier_id=results[-1]["courier_id"])


def called(name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"tool_calls": [{"id": f"call-{name}", "type": "function", "function": function}]}


def test_who_calls_the_tools_is_right_at_tasks_of_one_call_and_of_two(
    example, tasks, recording, monkeypatch, capsys
) -> None:
    trained: list[Any] = []
    monkeypatch.setattr(StepRunner, "train", lambda self, of_step, steps: trained.extend(of_step(1)))
    monkeypatch.setitem(example["main"].__globals__, "made", lambda server: tasks)
    monkeypatch.setattr(sys, "argv", ["train.py", "--heldout", "6", "--concurrency", "2"])
    with serving(calls_what_it_is_asked) as (url, requests):
        monkeypatch.setitem(example["AGENT"], "base_url", url)
        example["main"]()
    assert re.findall(r"^(?:before|after): .*", capsys.readouterr().out, re.MULTILINE) == [
        "before: 6 of 6 held-out tasks solved",
        "after: 6 of 6 held-out tasks solved",
    ]
    asked = tasks.held_out[:6]
    assert {task.fields["difficulty"] for task in asked} == {1, 2}
    assert len(requests) == 2 * sum(task.fields["difficulty"] + 1 for task in asked)
    assert {tool["function"]["name"] for tool in requests[0]["tools"]} == {"parcel", "courier"}
    assert {task.name for task in trained} <= {task.id for task in tasks.train}
    assert len(trained) == example["TASKS_PER_STEP"]


def test_another_server_comes_after_two_dashes(example, monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--", sys.executable, "-c", "", "--no-server"])
    with pytest.raises(SystemExit, match="no tasks could be made of the server"):
        example["main"]()


def test_a_wrong_or_garbled_answer_is_worth_nothing(play, tasks) -> None:
    said = ["", "I do not know.", "0", "<tool_call>\n{", "parcel(number=412)"]
    rewards, requests = play(lambda request: {"content": said.pop()}, tasks.held_out[:5])
    assert rewards == [0.0] * 5
    assert len(requests) == 5


def test_who_calls_for_ever_what_is_not_there_is_worth_nothing(play, tasks) -> None:
    calls = cycle([called("parcel", number=3), called("van", number=600)])
    rewards, requests = play(lambda request: next(calls), tasks.held_out[:2])
    assert rewards == [0.0] * 2
    assert len(requests) == 2 * 4  # the agent's turns


def test_tasks_are_the_same_every_time_and_held_out_ones_are_not_trained(example, tasks, again) -> None:
    assert (again[0].train, again[0].held_out) == (tasks.train, tasks.held_out)
    parts = [{json.dumps([task.fields["calls"], task.fields["question"]]) for task in some} for some in
             (tasks.train, tasks.held_out)]  # fmt: skip
    assert parts[0].isdisjoint(parts[1])
    assert len(parts[0]) >= 24 * example["TASKS_PER_STEP"]
    assert len(parts[1]) >= 64


def test_the_demonstrations_are_of_training_tasks_and_are_made_anew_as_they_are(tasks, again) -> None:
    written = FOLDER / "demonstrations.jsonl"
    assert again[1].read_bytes() == written.read_bytes()
    rows = [json.loads(line) for line in written.read_text().splitlines()]
    questions = {row["prompt"][1]["content"] for row in rows}
    assert questions <= {task.fields["question"] for task in tasks.train}
    assert {question.startswith("First: ") for question in questions} == {False, True}


def test_a_demonstration_begins_as_the_agent_is_asked(play, tasks) -> None:
    rows = [json.loads(line) for line in (FOLDER / "demonstrations.jsonl").read_text().splitlines()]
    question = rows[0]["prompt"][1]["content"]
    task = next(task for task in tasks.train if task.fields["question"] == question)
    rewards, requests = play(calls_what_it_is_asked, [task])
    assert rewards == [1.0]
    of_task = [row for row in rows if row["prompt"][1]["content"] == question]
    assert [request["tools"] for request in requests] == [row["tools"] for row in of_task]
    assert [without_ids(request["messages"]) for request in requests] == [without_ids(row["prompt"]) for row in of_task]


def without_ids(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A call's id is never shown to a model."""
    plain = [{name: value for name, value in message.items() if name != "tool_call_id"} for message in messages]
    for message in plain:
        if "tool_calls" in message:
            message["tool_calls"] = [call["function"] for call in message["tool_calls"]]
    return plain


def test_the_policy_has_the_groups_and_the_parser_that_the_example_needs(example) -> None:
    config = load_config(FOLDER / "lightning.toml")
    assert example["TASKS_PER_STEP"] == config.only_policy.groups_per_step
    assert config.engine.tool_call_parser == "hermes"
    wait, imitation, rl = config.policy[0].stage
    assert (wait.data, wait.steps, rl.data, rl.steps) == (None, 1, None, None)
    assert imitation.data is not None
    model = resolve_model(config.only_policy.model, model_cache())
    rows = read_demonstrations(imitation.data, "sft", 49_152, lambda: PolicyTokenizer(model))
    assert max(len(row.prompt_ids) + len(row.answers[0]) for row in rows) <= config.engine.max_model_len
    assert max(len(row.answers[0]) for row in rows) <= example["AGENT"]["max_tokens"]

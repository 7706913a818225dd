"""MCP servers: tasks made from their tools alone, and the environment that plays them."""

import json
import os
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lightning_trainer.cli.app import app
from lightning_trainer.environments import Task
from lightning_trainer.environments.adapters.mcp_tools import LONGEST_RESULT, McpTools, is_right
from lightning_trainer.environments.limits import Limits
from lightning_trainer.environments.mcp_server import McpResult, McpServer, McpServerError, McpTool
from lightning_trainer.environments.protocol import Tool
from lightning_trainer.environments.registry import EnvironmentSpec, launch_of
from lightning_trainer.environments.scenarios import demonstrations, explore, make_scenarios
from lightning_trainer.environments.session import InProcess, Session
from lightning_trainer.environments.worker.process import EnvironmentProcess

ROOT = Path(__file__).parents[4]
SERVER = [sys.executable, str(Path(__file__).with_name("mcp_server_of_tests.py"))]
SHOP = [sys.executable, str(ROOT / "examples" / "mcp" / "server.py")]


class FakeServer:
    """Two tools over a dictionary: what is explored can be counted by hand."""

    def __init__(self) -> None:
        schema = {"type": "object", "properties": {"city_id": {"type": "integer"}}, "required": ["city_id"]}
        self.tools = [
            McpTool(Tool("list_cities", "List the cities.", {"type": "object", "properties": {}}), True),
            McpTool(Tool("get_city", "Look up a city.", schema), True),
            McpTool(Tool("drop_city", "Drop a city.", schema), False),
        ]
        self.calls: list[tuple[str, dict]] = []

    def call(self, name, arguments) -> McpResult:
        self.calls.append((name, dict(arguments)))
        if name == "list_cities":
            return McpResult("", False, [{"id": 1, "name": "Oslo"}, {"id": 2, "name": "Lima"}])
        return McpResult("", False, {"people": arguments["city_id"] * 1000})


def test_an_argument_is_a_value_of_its_name_and_nothing_is_called_that_may_change_something() -> None:
    server = FakeServer()
    found = explore(server, seed=0)
    assert sorted(server.calls, key=str) == [
        ("get_city", {"city_id": 1}),
        ("get_city", {"city_id": 2}),
        ("list_cities", {}),
    ]
    assert found.skipped == ("drop_city",)


def test_a_chain_is_asked_in_words_and_answered_by_what_it_came_to() -> None:
    found = explore(FakeServer(), seed=0)
    train, held_out = make_scenarios(found, FakeServer(), difficulties=[2], count=9, held_out=9)
    asked = {scenario.question: scenario.answer for scenario in train + held_out}
    assert asked == {
        "First: list the cities. Then: look up a city with city_id from there (the id of entry 1). "
        "What is the people?": 1000,
        "First: list the cities. Then: look up a city with city_id from there (the id of entry 2). "
        "What is the people?": 2000,
    }


def test_what_is_passed_on_to_the_last_call_is_no_answer() -> None:
    class Echo(FakeServer):
        def call(self, name, arguments) -> McpResult:
            result = super().call(name, arguments)
            return result if name == "list_cities" else McpResult("", False, {**result.value, **arguments})

    train, held_out = make_scenarios(explore(Echo()), Echo(), difficulties=[2], count=9, held_out=9)
    assert sorted(scenario.answer for scenario in train + held_out) == [1000, 2000]  # and no city_id


@pytest.mark.parametrize(
    ("bounds", "inside"),
    [
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 1}, lambda x: 0 < x < 1),
        ({"minimum": 0.2, "maximum": 0.8}, lambda x: 0.2 <= x <= 0.8),
        ({"minimum": 0.2, "exclusiveMaximum": 3}, lambda x: x in (1, 2)),
    ],
)
def test_a_number_is_drawn_within_the_bounds_of_its_schema(bounds: dict, inside: Callable[[float], bool]) -> None:
    schema = {"type": "object", "properties": {"share": {"type": "number", **bounds}}, "required": ["share"]}
    server = FakeServer()
    server.tools = [McpTool(Tool("get_share", "", schema), True)]
    server.call = lambda name, arguments: McpResult("", False, {"got": arguments["share"]})
    shares = [dict(called.arguments)["share"] for called in explore(server).calls]
    assert shares
    assert all(isinstance(share, int | float) and inside(share) for share in shares)


def test_bounds_without_a_whole_number_between_them_make_no_argument() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0.2, "maximum": 0.8}}}
    server = FakeServer()
    server.tools = [McpTool(Tool("get", "", {**schema, "required": ["n"]}), True)]
    assert explore(server).calls == []


def test_a_seed_makes_the_same_scenarios_and_train_and_held_out_share_none() -> None:
    def made(seed: int) -> tuple[list[str], list[str]]:
        server = FakeServer()
        both = make_scenarios(explore(server, seed=seed), server, difficulties=[1, 2], count=4, held_out=4, seed=seed)
        return tuple([scenario.chain.content for scenario in part] for part in both)  # pyright: ignore

    assert made(1) == made(1)
    train, held_out = made(1)
    assert set(train).isdisjoint(held_out)


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("scenarios")
    command = ["scenarios", "mcp", "--out", str(out), "--count", "40", "--held-out", "10", "--demonstrations", "6"]
    command += ["--", *SHOP]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return out


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.process
def test_the_shop_gives_chains_of_every_difficulty(scenarios: Path) -> None:
    train, held_out = read(scenarios / "train.jsonl"), read(scenarios / "held-out.jsonl")
    assert (len(train), len(held_out)) == (40, 10)
    assert {task["difficulty"] for task in train} == {1, 2, 3}
    assert {task["id"] for task in train}.isdisjoint(task["id"] for task in held_out)
    assert len({task["question"] for task in train + held_out}) == 50


def test_demonstrations_are_the_calls_of_training_tasks_each_with_what_came_before(scenarios: Path) -> None:
    rows, train = read(scenarios / "demonstrations.jsonl"), read(scenarios / "train.jsonl")
    by_question: dict[str, list[dict]] = {}
    for row in rows:
        by_question.setdefault(row["prompt"][1]["content"], []).append(row)
    assert list(by_question) == [task["question"] for task in train[:6]]
    for task in train[:6]:
        *calls, answer = by_question[task["question"]]
        made = [row["completion"][0]["tool_calls"][0]["function"]["name"] for row in calls]
        assert made == [call["tool"] for call in task["calls"]]
        assert is_right(answer["completion"][0]["content"], task["answer"])
        for row, following in pairwise([*calls, answer]):
            assert following["prompt"][:-1] == [*row["prompt"], *row["completion"]]
            assert following["prompt"][-1]["role"] == "tool"


def test_a_chain_that_fails_when_it_is_executed_again_is_not_demonstrated() -> None:
    class Failing(FakeServer):
        def call(self, name, arguments) -> McpResult:
            result = super().call(name, arguments)
            return McpResult("gone", True, None) if name == "get_city" and arguments["city_id"] == 1 else result

    found = explore(FakeServer(), seed=0)
    train, held_out = make_scenarios(found, FakeServer(), difficulties=[2], count=9, held_out=9)
    rows = demonstrations(train + held_out, Failing(), 9)
    assert len(rows) == 3  # list, get, and the answer of the other city
    assert "entry 2" in rows[0]["prompt"][1]["content"]


def test_a_chain_that_finds_another_answer_or_none_is_not_demonstrated() -> None:
    class Changing(FakeServer):
        def __init__(self, city: object) -> None:
            super().__init__()
            self.city = city

        def call(self, name, arguments) -> McpResult:
            return McpResult("", False, self.city) if name == "get_city" else super().call(name, arguments)

    found = explore(FakeServer(), seed=0)
    train, held_out = make_scenarios(found, FakeServer(), difficulties=[2], count=9, held_out=9)
    for city in ({"people": 7}, {"inhabitants": 1000}, None):
        assert demonstrations(train + held_out, Changing(city), 9) == []


def test_what_a_tool_returned_is_demonstrated_as_long_as_the_agent_is_shown_it() -> None:
    class Verbose(FakeServer):
        def call(self, name, arguments) -> McpResult:
            result = super().call(name, arguments)
            return McpResult("x" * 30_000, result.failed, result.value)

    found = explore(FakeServer(), seed=0)
    train, held_out = make_scenarios(found, FakeServer(), difficulties=[2], count=9, held_out=9)
    (said,) = {row["prompt"][-1]["content"] for row in demonstrations(train + held_out, Verbose(), 9)[1:3]}
    assert said == "x" * LONGEST_RESULT


@pytest.mark.process
def test_who_makes_the_recorded_calls_finds_the_recorded_answer(scenarios: Path) -> None:
    environment = McpTools()
    for line in read(scenarios / "train.jsonl")[:12]:
        session = Session(InProcess(environment), Task("mcp", "1", name=line["id"], fields=line))
        assert {tool.name for tool in session.tools} >= {call["tool"] for call in line["calls"]}
        value: object = None
        for call in line["calls"]:
            arguments = dict(call["arguments"])
            for name, path in call["taken"].items():
                found: object = value
                for part in path:
                    found = found[part]  # pyright: ignore
                arguments[name] = found
            said = session.call(call["tool"], arguments)
            # Python's servers say each entry of a list as a text of its own.
            value = _entries(said)
            if not call["tool"].startswith("list"):
                (value,) = value
        session.say(f"It is {line['answer']}.")
        assert (session.done, session.reward) == (True, 1.0)
    environment.close()


def _entries(text: str) -> list:
    decoder, entries, at = json.JSONDecoder(), [], 0
    while at < len(text):
        entry, at = decoder.raw_decode(text, at)
        entries.append(entry)
        while at < len(text) and text[at].isspace():
            at += 1
    return entries


@pytest.mark.process
def test_what_is_not_the_same_twice_is_no_task(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["scenarios", "mcp", "--out", str(tmp_path), "--difficulty", "1-2", "--", *SERVER], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    assert "left alone, since they may change something: count_up" in done.output.replace("\n", " ")
    tools = {call["tool"] for line in read(tmp_path / "train.jsonl") for call in line["calls"]}
    assert tools == {"list_rooms", "get_room"}


@pytest.mark.process
def test_a_tool_that_may_change_something_leaves_no_trace_for_the_next_attempt() -> None:
    environment = McpTools()
    for _ in range(2):
        session = Session(InProcess(environment), Task("mcp", "1", name="t", fields={"command": SERVER, "answer": 1}))
        assert json.loads(session.call("count_up", {})) == {"count": 1}
    environment.close()


@pytest.mark.process
def test_a_tool_may_take_as_long_as_its_option_says() -> None:
    """That its limit ends a call: ``test_mcp_server.py``."""
    launch = launch_of(EnvironmentSpec.parse("mcp?timeout_s=12"))
    assert launch.step_timeout_s > 12
    process = EnvironmentProcess(launch, Limits(step_timeout_s=1, reset_timeout_s=1))
    fields = {"command": [sys.executable, str(Path(__file__).with_name("raw_mcp_server.py"))], "answer": 1}
    session = Session(process, Task("mcp", "1", name="t", fields=fields))
    assert session.call("slow", {"seconds": 2}) == "ok"
    process.close()


@pytest.mark.process
def test_what_the_server_refuses_is_told_to_the_model() -> None:
    with McpServer(SERVER) as server:
        assert [tool.reads_only for tool in server.tools] == [True, True, True, False]
        assert server.call("get_room", {"room_id": 4}).value == {"room_id": 4, "seats": 44, "open": True}
        assert "get_room" in server.call("get_room", {"room_id": 5}).text
        assert server.call("get_room", {}).failed
        assert server.call("no_such_tool", {}).failed


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["no-such-program"], "the MCP server no-such-program cannot be used"),
        ([sys.executable, "-c", "raise SystemExit('no')"], "cannot be used"),
        (["http://127.0.0.1:9/mcp"], "cannot be used"),
        ([sys.executable, "-c", "import time; time.sleep(60)"], "did not start within 2 s"),
    ],
)
def test_a_server_that_cannot_be_used_is_one_sentence(command: list[str], sentence: str) -> None:
    with pytest.raises(McpServerError, match=sentence):
        McpServer(command, timeout_s=2 if "within 2 s" in sentence else 60)


@pytest.mark.process
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--difficulty", "0"], "the difficulty is '0'; write a number of calls up to 6"),
        (["--tool", "nope"], "the server has no tool 'nope'; it has list_rooms, get_room, roll, count_up"),
    ],
)
def test_a_mistake_is_one_sentence(options: list[str], sentence: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["scenarios", "mcp", "--out", str(tmp_path), *options, "--", *SERVER], env={**os.environ, "COLUMNS": "300"}
    )
    assert done.exit_code == 2
    assert sentence in done.stderr


@pytest.mark.parametrize(
    ("said", "answer", "right"),
    [
        ("It is 42.", 42, True),
        ("Of 17 it is 42", 42, True),
        ("42 of 17", 42, False),
        ("1,042", 1042, True),
        ("4.2", 4.2, True),
        ("none", 42, False),
        ("The city is Lima.", "Lima", True),
        ("lima", "Lima", True),
        ("Oslo", "Lima", False),
        ("Oslo Lima " + "x" * 100, "Lima", False),
        ("p-31", "P-31", True),
        ("true", True, True),
        ("No, it is not", True, False),
        ("maybe", False, False),
        ("It is C12.", "C1", False),
        ("It is C1.", "C1", True),
        ("female", "male", False),
        ("1e-07", 1e-07, True),
        ("I do not know", "€", False),
        ("It costs 5 €", "€", True),
        ("I do not know", "", False),
        ("12345679", 12345678, False),
        ("12,345,678.0", 12345678, True),
        ("9007199254740993", 9007199254740993, True),
        ("9" * 5000, 5, False),
    ],
)
def test_an_answer_is_right_where_it_is_the_value_and_not_everything(said: str, answer: object, right: bool) -> None:
    assert is_right(said, answer) is right

"""Runners from environments: tasks, attempts and rewards; an agent of ours, or a program of someone's."""

import json
import sys
from pathlib import Path
from typing import Any

import lightning_instrumentation as lt
import pytest
from lightning_instrumentation.scope import Agent, current, current_agent

from lightning_trainer.environments import Observation, Task, adapters
from lightning_trainer.environments.agent import ChatAgent
from lightning_trainer.environments.limits import Limits
from lightning_trainer.environments.registry import KNOWN, EnvironmentSpec, launch_of
from lightning_trainer.environments.session import Session
from lightning_trainer.errors import ConfigError, LightningError
from lightning_trainer.rollouts import Curriculum, Runner
from lightning_trainer.rollouts.command import Command
from lightning_trainer.rollouts.daemon_client import DaemonClient
from lightning_trainer.rollouts.environment.program_agent import ProgramAgent
from tests.lightning_trainer.environments.openai_server import serving  # pyright: ignore[reportMissingImports]
from tests.lightning_trainer.environments.worlds import Adder, Alike, Closes, Guess  # pyright: ignore[reportMissingImports]

pytestmark = pytest.mark.usefixtures("recording")

ENDPOINT = "http://127.0.0.1:9"
WORLDS = Path(__file__).with_name("worlds.py")


def bisecting(session: Session) -> None:
    low, high = 1, 20
    while not session.done:
        guess = (low + high) // 2
        low, high = (guess + 1, high) if session.say(str(guess)) == "higher" else (low, guess - 1)


@pytest.mark.parametrize("environment", [Guess, f"{WORLDS}:Guess"])
def test_an_attempt_is_worth_what_its_steps_earned(environment) -> None:
    with Runner.from_environment(environment, policy="p", agent=bisecting, endpoint=ENDPOINT, concurrency=4) as runner:
        ended = runner.evaluate_held_out(6)
    assert [attempt.reward for attempt in ended] == [1.0] * 6
    assert len({attempt.task_id for attempt in ended}) == 6
    assert all("#held-out-" in attempt.task_id for attempt in ended)


@pytest.mark.parametrize("environment", [Alike, f"{WORLDS}:Alike"])
def test_an_evaluation_of_what_cannot_be_held_out_says_so(environment, caplog) -> None:
    play = lambda session: session.say("x")  # noqa: E731
    with Runner.from_environment(environment, policy="p", agent=play, endpoint=ENDPOINT) as runner:
        ended = runner.evaluate_held_out(2)
    assert [attempt.reward for attempt in ended] == [1.0] * 2
    (said,) = (one.getMessage() for one in caplog.records if one.name.startswith("lightning_trainer.rollouts"))
    assert said == runner.environment.nothing_held_out
    assert "has too few different openings to hold any out" in said
    assert (
        Runner.from_environment(Guess, policy="p", endpoint=ENDPOINT, agent=play).environment.nothing_held_out is None
    )


def test_steps_take_other_tasks_and_a_seed_takes_others_still() -> None:
    def tasks(seed: int, step: int) -> set[str]:
        runner = Runner.from_environment(Guess, policy="p", agent=bisecting, endpoint=ENDPOINT, seed=seed)
        return {task.id for task in runner.environment.training_tasks(step, 8)}

    assert tasks(0, 1) == tasks(0, 1)
    assert len(tasks(0, 1) | tasks(0, 2) | tasks(1, 1)) == 24


def test_an_environment_with_few_tasks_repeats_them_and_says_when_a_step_needs_more() -> None:
    runner = Runner.from_environment(Adder, policy="p", agent=bisecting, endpoint=ENDPOINT)
    assert [task.seed for task in runner.environment.training_tasks(2, 2)] == [2, 0]
    assert [task.seed for task in runner.environment.training_tasks(2, 2, run=2)] == [1, 2]
    with pytest.raises(LightningError, match="has 2 held-out tasks, and 3 are asked for"):
        runner.evaluate_held_out(3)


def test_a_curriculum_has_nothing_to_choose_from_the_environments_own_tasks(monkeypatch) -> None:
    status = {"needs_baseline": False, "groups_per_step": 8}
    monkeypatch.setattr("lightning_trainer.rollouts.daemon_client.DaemonClient.policy", lambda _: status)
    curriculum = Curriculum[Task](lambda task: task.fields["level"])
    options = {"policy": "p", "agent": bisecting, "endpoint": ENDPOINT, "curriculum": curriculum}
    with Runner.from_environment(Guess, **options) as runner, pytest.raises(LightningError, match="more than 8 tasks"):
        runner.train(steps=1)


def test_each_task_of_a_file_starts_a_world_of_its_own() -> None:
    runner = Runner.from_environment(Guess, policy="p", agent=bisecting, endpoint=ENDPOINT)
    tasks = [runner.environment.named_task(f"line-{number}", {"hint": number}) for number in range(9)]
    assert len({task.random().random() for task in [*tasks, Task("Guess", runner.environment.version)]}) == 10
    assert tasks[0].random().random() == runner.environment.named_task("line-0", {"hint": 0}).random().random()
    assert len({tasks[0].random(more).random() for more in (0, 1)}) == 2


def test_what_a_file_says_of_a_task_is_its_input() -> None:
    runner = Runner.from_environment(Guess, policy="p", agent=bisecting, endpoint=ENDPOINT)
    named = runner.environment.named_task("easy", {"hint": 3})
    assert named.input == {"hint": 3}
    assert runner.environment.training_tasks(1, 1)[0].input is None


def test_a_task_of_a_file_is_refused_where_only_seeds_make_tasks(monkeypatch) -> None:
    launch = launch_of(EnvironmentSpec.parse(f"{WORLDS}:Guess"))
    monkeypatch.setattr("lightning_trainer.rollouts.environment.attempt.launch_of", lambda *_: launch)
    with Runner.from_environment("gymnasium:Taxi-v4", policy="p", agent=bisecting, endpoint=ENDPOINT) as runner:
        said = "'easy' of a file means nothing to gymnasium:Taxi-v4, whose tasks come from seeds; leave out --tasks"
        with pytest.raises(ConfigError, match=said):
            runner.environment.named_task("easy", {"level": 1})


@pytest.mark.parametrize("name", KNOWN)
def test_tasks_of_a_file_are_taken_where_the_adapter_reads_them(name: str) -> None:
    module = KNOWN[name].adapter.partition(":")[0]
    source = (Path(adapters.__file__).with_name(f"{module}.py")).read_text()
    reads = (
        "task.fields" in source or "self._pages.open(task)" in source
    )  # the latter hands the task to the user's code
    assert KNOWN[name].from_file == reads


def test_a_task_of_another_version_is_refused() -> None:
    runner = Runner.from_environment(Adder, policy="p", agent=bisecting, endpoint=ENDPOINT)
    (ended,) = runner.evaluate([Task("Adder", "1")], stage="e")
    assert ended.error is not None
    assert "is not of Adder@2: its attempts would not be comparable" in ended.error


@pytest.mark.parametrize(("how", "error"), [("hangs", "EnvironmentTimeoutError"), ("dies", "EnvironmentDiedError")])
def test_a_broken_environment_is_a_failed_attempt_and_not_a_dead_run(how: str, error: str) -> None:
    def swallows(session: Session) -> None:
        try:
            session.say("1")
            session.say("2")
        except LightningError:
            return

    with Runner.from_environment(
        f"{WORLDS}:Broken:{how}", policy="p", agent=swallows, endpoint=ENDPOINT, limits=Limits(step_timeout_s=0.5)
    ) as runner:
        ended = runner.evaluate_held_out(3)
    assert [(attempt.error or "").partition(":")[0] for attempt in ended] == [error] * 3
    assert [attempt.reward for attempt in ended] == [None] * 3


def test_an_environment_in_our_process_is_closed_after_each_attempt_however_it_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notes = tmp_path / "notes"

    class Here(Closes):
        def __init__(self) -> None:
            super().__init__(str(notes), "raises")

        def size(self, split: str) -> int:
            return 2

    def breaks(session: Session) -> None:
        assert notes.read_text().split() == ["made", "closed"] * (session.task.seed + 1) + ["made"]
        session.say("break" if session.task.seed else "1")

    options = {"policy": "p", "agent": breaks, "endpoint": ENDPOINT, "concurrency": 1}
    with Runner.from_environment(Here, **options) as runner:
        ended = runner.evaluate_held_out(2)
    assert [attempt.error for attempt in ended] == [None, "ValueError: it broke"]
    assert notes.read_text().split() == ["made", "closed"] * 3
    assert "it cannot be closed" in caplog.text


def test_our_agent_converses_with_the_endpoint_and_the_environment(monkeypatch) -> None:
    given: list[tuple[float, str, str | None]] = []
    monkeypatch.setattr(
        lt, "reward", lambda value, name="reward", response_id=None: given.append((value, name, response_id))
    )

    def model(request: dict) -> dict:
        result = next((said["content"] for said in request["messages"] if said["role"] == "tool"), None)
        if result is not None:
            return {"content": result}
        call = {"name": "add", "arguments": json.dumps({"a": 2, "b": 3})}
        return {"tool_calls": [{"id": "c1", "type": "function", "function": call}]}

    with serving(model) as (url, requests):
        options = {"base_url": url, "temperature": 0.7, "max_tokens": 9}
        runner = Runner.from_environment(Adder, policy="adder", agent_options=options, endpoint=ENDPOINT)
        (ended,) = runner.evaluate(runner.environment.held_out_tasks(1), stage="e")
    assert (ended.error, ended.reward) == (None, 1.0)
    first, second = requests
    assert first["messages"] == [
        {"role": "system", "content": "Use the tool."},
        {"role": "user", "content": "Add 2 and 3."},
    ]
    assert first["tools"][0]["function"]["name"] == "add"
    assert (first["model"], first["temperature"], first["max_tokens"]) == ("adder", 0.0, 9)
    assert second["messages"][3] == {"role": "tool", "tool_call_id": "c1", "content": "5"}
    # The step that nothing scored has no reward; the call that ended it has its own, and the attempt has the sum.
    assert given == [(1.0, "turn", "call-2"), (1.0, "reward", None)]


def test_an_old_version_plays_as_the_policys_agent_and_its_policy_is_waited_for(monkeypatch) -> None:
    asked: list[str] = []
    agents: list[Agent | None] = []
    monkeypatch.setattr(DaemonClient, "wait_until_there", lambda client: asked.append(client._url))

    class Watching(Guess):
        def step(self, action):
            agents.append(current_agent())
            return super().step(action)

    with serving(lambda request: {"content": "1"}) as (url, requests):
        options = {"base_url": url, "max_turns": 1}
        runner = Runner.from_environment(Watching, policy="game@v0", agent_options=options, endpoint=ENDPOINT)
        runner.evaluate_held_out(2)
    assert asked == [f"{ENDPOINT}/lightning/policies/game"]
    assert [request["model"] for request in requests] == ["game@v0"] * 2
    assert [agent and agent.name for agent in agents] == ["game"] * 2


def test_an_old_version_is_not_trained_and_plays_as_our_agent_alone(monkeypatch) -> None:
    monkeypatch.setattr(DaemonClient, "policy", lambda _: {"needs_baseline": False, "agents": ["game"]})
    runner = Runner.from_environment(Guess, policy="game@v0", endpoint=ENDPOINT)
    with pytest.raises(
        LightningError, match="'game@v0' is a version of a policy, which is evaluated and never trained"
    ):
        runner.train(steps=1)
    with pytest.raises(LightningError, match="have the agent ask for the model 'game@v0', and name the policy, 'game'"):
        Runner.from_environment(Guess, policy="game@v0", agent=bisecting, endpoint=ENDPOINT)


def test_another_endpoint_gets_neither_the_daemons_token_nor_the_trust_in_it(tmp_path, monkeypatch) -> None:
    told: list[dict[str, Any]] = []

    class Told(ChatAgent):
        def __init__(self, model, **options):
            told.append(options)
            super().__init__(model, **options)

    monkeypatch.setattr("lightning_trainer.rollouts.environment.runner.ChatAgent", Told)
    lt.init(ENDPOINT, token="the-daemons", spool_dir=tmp_path)
    for options in ({}, {"base_url": "https://elsewhere/v1"}):
        Runner.from_environment(Guess, policy="p", agent_options=options, endpoint=ENDPOINT)
    assert told[0]["api_key"] == "the-daemons"
    assert told[1] == {"base_url": "https://elsewhere/v1", "name": "p"}


@pytest.mark.parametrize(("history", "shown"), [(None, 3), (1, 2), (0, 1)])
def test_the_model_is_shown_as_many_earlier_turns_as_it_is_told(history: int | None, shown: int) -> None:
    with serving(lambda request: {"content": "1"}) as (url, requests):
        options = {"base_url": url, "history": history, "max_turns": 3, "instructions": "Guess."}
        runner = Runner.from_environment(Guess, policy="p", agent_options=options, endpoint=ENDPOINT)
        runner.evaluate([Task("Guess", runner.environment.version, seed=3)], stage="e")
    roles = [message["role"] for message in requests[-1]["messages"]]
    assert roles == ["system", *["user", "assistant"] * (shown - 1), "user"]
    assert requests[-1]["messages"][-1]["content"] in ("higher", "lower")


class Seen(Guess):
    """Every observation has a picture."""

    def reset(self, task):
        return Observation(super().reset(task), images=("data:image/png;base64,QQ==",))

    def step(self, action):
        said, reward, done = super().step(action)
        return Observation(said, images=("data:image/png;base64,Qg==",)), reward, done


def test_pictures_are_sent_where_the_model_sees_and_recorded_as_a_tools_result_where_it_does_not(monkeypatch) -> None:
    recorded: list[object] = []
    monkeypatch.setattr(
        "lightning_trainer.environments.agent.ToolSpan.returned", lambda self, result: recorded.append(result())
    )
    shown: dict[bool, Any] = {}
    for images in (True, False):
        with serving(lambda request: {"content": "1"}) as (url, requests):
            options = {"base_url": url, "max_turns": 2, "images": images}
            runner = Runner.from_environment(Seen, policy="p", agent_options=options, endpoint=ENDPOINT)
            runner.evaluate([Task("Seen", runner.environment.version, seed=3)], stage="e")
        shown[images] = [one["content"] for one in requests[-1]["messages"] if one["role"] == "user"]
        assert bool(recorded) is not images
    first, second = shown[True]
    assert first[1:] == [{"type": "image_url", "image_url": {"url": "data:image/png;base64,QQ=="}}]
    assert [part["type"] for part in second] == ["text", "image_url"]
    assert shown[False] == [part["text"] for part in (first[0], second[0])]
    assert recorded[:2] == [[{"type": "image", "mimeType": "image/png", "data": data}] for data in ("QQ==", "Qg==")]


def test_arguments_that_are_not_json_reach_the_environment_as_such() -> None:
    seen: list[object] = []

    class Listens(Adder):
        def step(self, action):
            seen.append(action.tool_calls[0].arguments)
            return "no", 0.0, True

    broken = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{a: 1"}}
    with serving(lambda request: {"tool_calls": [broken]}) as (url, _):
        runner = Runner.from_environment(Listens, policy="p", agent_options={"base_url": url}, endpoint=ENDPOINT)
        runner.evaluate_held_out(1)
    assert seen == [{"_unreadable": "{a: 1"}]


PROGRAM = """
import json, sys, urllib.request
task = json.load(sys.stdin)
low, high, done = 1, 20, False
while not done:
    guess = (low + high) // 2
    request = urllib.request.Request(task["environment_url"] + "/step", json.dumps({"text": str(guess)}).encode())
    answer = json.load(urllib.request.urlopen(request))
    done = answer["done"]
    low, high = (guess + 1, high) if answer["observation"]["text"] == "higher" else (low, guess - 1)
print("0.25")
"""


@pytest.mark.process
def test_a_program_acts_over_http_and_the_environment_scores_it() -> None:
    agent = ProgramAgent(Command([sys.executable, "-c", PROGRAM], endpoint=ENDPOINT))
    with Runner.from_environment(Guess, policy="p", agent=agent, endpoint=ENDPOINT) as runner:
        ended = runner.evaluate_held_out(3)
    agent.stop()
    assert [(attempt.error, attempt.reward) for attempt in ended] == [(None, 1.0)] * 3


@pytest.mark.process
@pytest.mark.parametrize(
    ("path", "body", "status"),
    [("/step", b"{}", 200), ("/step", b"[1]", 422), ("/step", b"nonsense", 422), ("/reset", b"{}", 404)],
)
def test_a_program_that_speaks_badly_is_told_so(path: str, body: bytes, status: int) -> None:
    code = f"""
import json, sys, urllib.error, urllib.request
task = json.load(sys.stdin)
try:
    said = urllib.request.urlopen(urllib.request.Request(task["environment_url"] + {path!r}, {body!r})).status
except urllib.error.HTTPError as error:
    said = error.code
assert said == {status}, said
"""
    agent = ProgramAgent(Command([sys.executable, "-c", code], endpoint=ENDPOINT))
    with Runner.from_environment(Guess, policy="p", agent=agent, endpoint=ENDPOINT) as runner:
        (ended,) = runner.evaluate_held_out(1)
    agent.stop()
    assert ended.error is None


SLOW = """
import time
class Slow:
    def reset(self, task):
        return "first" if task.seed == 0 else "later"
    def step(self, action):
        time.sleep(float(action.text))
        return "done", 1.0, True
"""
IMPATIENT = """
import json, sys, threading, time, urllib.request
task = json.load(sys.stdin)
def act(text):
    request = urllib.request.Request(task["environment_url"] + "/step", json.dumps({{"text": text}}).encode())
    return urllib.request.urlopen(request).read()
if task["observation"]["text"] == "first":
    threading.Thread(target=act, args=("3",), daemon=True).start()
    {first}
else:
    act("0")
"""


@pytest.mark.process
@pytest.mark.parametrize(("first", "error"), [("time.sleep(60)", "TimeoutError"), ("time.sleep(0.5)", "")])
def test_an_environment_is_given_back_when_the_step_of_a_program_that_is_gone_has_ended(
    first: str, error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    agent = ProgramAgent(
        Command([sys.executable, "-c", IMPATIENT.format(first=first)], endpoint=ENDPOINT, timeout_s=2.0)
    )
    options = {"policy": "p", "agent": agent, "endpoint": ENDPOINT, "concurrency": 1}
    with Runner.from_environment(f"{tmp_path}/slow.py:Slow", **options) as runner:
        ended = runner.evaluate_held_out(3)
    agent.stop()
    assert [(attempt.error or "").partition(":")[0] for attempt in ended] == [error, "", ""]
    assert [attempt.reward for attempt in ended] == [None if error else 1.0, 1.0, 1.0]
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.process
def test_a_program_that_acts_twice_at_once_acts_one_after_the_other() -> None:
    code = """
import json, sys, threading, urllib.request
task = json.load(sys.stdin)
said = []
def act():
    body = json.dumps({"text": "0"}).encode()
    said.append(urllib.request.urlopen(urllib.request.Request(task["environment_url"] + "/step", body)).status)
threads = [threading.Thread(target=act) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert said == [200] * 8, said
"""
    agent = ProgramAgent(Command([sys.executable, "-c", code], endpoint=ENDPOINT))
    with Runner.from_environment(f"{WORLDS}:Guess", policy="p", agent=agent, endpoint=ENDPOINT) as runner:
        (ended,) = runner.evaluate_held_out(1)
    agent.stop()
    assert ended.error is None


def test_the_agent_knows_whether_it_is_evaluated() -> None:
    modes: list[str | None] = []

    def looks(session: Session) -> None:
        identity = current().identity
        modes.append(identity.mode if identity else None)

    Runner.from_environment(Guess, policy="p", agent=looks, endpoint=ENDPOINT).evaluate_held_out(1)
    assert modes == ["evaluate"]

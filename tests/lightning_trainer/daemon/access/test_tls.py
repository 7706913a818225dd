"""A real daemon with a certificate: whom it serves, and the one sentence that everybody else hears.

Its authority is nobody's but the tests'. The agent is never broken by it.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.process

TIMEOUT_S = 120
AGENT = """
import lightning_instrumentation as lt
with lt.rollout("t"):
    pass
print("flushed", lt.flush(FLUSH_S))
"""
RUNNERS_QUESTION = """
from lightning_trainer.rollouts.daemon_client import DaemonClient
import os
DaemonClient(os.environ["LIGHTNING_ENDPOINT"], "nobody", token=os.environ.get("LIGHTNING_TOKEN")).policy()
"""
RUNNER_OF_PROGRAM = """
import sys
import lightning_instrumentation as lt
from lightning_trainer.errors import LightningError
from lightning_trainer.rollouts import Runner
from lightning_trainer.rollouts.run_name import held_run
lt.init(sys.argv[1], token=sys.argv[2], ca_file=sys.argv[3])
runner = Runner("nobody", print)
endpoint, token, ca_file = runner._reached
with held_run(endpoint, "r", token=token, ca_file=ca_file, numbered=False, patience_s=5) as run:
    print(run)
runner.steps_done()
"""
AGENT_OF_OURS = """
import json, os, sys, threading
import openai
from lightning_trainer.rollouts import Runner
class World:
    def reset(self, task):
        return "say something"
    def step(self, action):
        return "well", 1.0, True
# A process for each environment, of which none imports the client of OpenAI anew.
assert threading.active_count() == 1
for number, environment in enumerate(json.loads(sys.argv[1])):
    if (child := os.fork()) == 0:
        os.dup2(os.open(f"said-{number}", os.O_WRONLY | os.O_CREAT), 2)
        os.environ.update(environment)
        runner = Runner.from_environment(World, policy="nobody")
        (task,) = runner.environment.held_out_tasks(1)
        runner.environment(task)
        sys.exit()
    os.waitpid(child, 0)
"""


@dataclass
class Served:
    folder: Path
    port: int
    environment: dict[str, str]
    lightning: Any

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command],
            cwd=self.folder,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )

    def cli(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.lightning.run(*command, cwd=self.folder, env=self.environment | environment, timeout=TIMEOUT_S)

    def agent(self, flush_s: float = 30, **environment: str) -> tuple[bool, str]:
        """Return whether its spans arrived, and what it said."""
        done = self.run("-c", AGENT.replace("FLUSH_S", str(flush_s)), **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.split() == ["flushed", "True"], done.stderr

    def refused_agents(self, environments: Sequence[dict[str, str]]) -> list[str]:
        """Return what agents said whose spans do not arrive; they wait in vain beside each other."""
        with ThreadPoolExecutor(3) as pool:
            done = list(pool.map(lambda environment: self.agent(2, **environment), environments))
        assert not any(arrived for arrived, _ in done)
        return [said for _, said in done]

    def stranger(self, **environment: str) -> dict[str, str]:
        """The environment of someone to whom the daemon has left nothing."""
        token = (self.folder / "state" / "token").read_text().strip()
        elsewhere = {name: str(self.folder / "stranger" / name) for name in ("LIGHTNING_ACCESS_DIR", "XDG_STATE_HOME")}
        spool = str(self.folder / "stranger" / str(time.monotonic_ns()))
        return {"LIGHTNING_TOKEN": token, "LIGHTNING_SPOOL_DIR": spool, **elsewhere, **environment}


@pytest.fixture(scope="module")
def authority(tmp_path_factory, authority_class):
    return authority_class(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def served(tmp_path_factory, authority, lightning):
    tmp_path = tmp_path_factory.mktemp("served")
    cert, key = authority.sign("127.0.0.1", "gpu-box")
    (tmp_path / "lightning.toml").write_text(
        f'[daemon]\nport = 0\nstate_dir = "state"\ntls_cert = "{cert}"\ntls_key = "{key}"\n'
    )
    environment = {**os.environ, "LIGHTNING_SPOOL_DIR": str(tmp_path / "spool")}
    with (tmp_path / "daemon.log").open("ab") as log:
        daemon = lightning.start("serve", cwd=tmp_path, stdout=log, stderr=log, env=environment)
    announced, deadline = tmp_path / "state" / "daemon.json", time.monotonic() + TIMEOUT_S
    while not (announced.exists() and announced.read_text()):
        assert daemon.poll() is None, (tmp_path / "daemon.log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.5)  # it leaves word for its user's programs right afterwards
    port = int(json.loads(announced.read_text())["url"].rpartition(":")[2])
    yield Served(tmp_path, port, {**environment, "LIGHTNING_ENDPOINT": f"https://127.0.0.1:{port}"}, lightning)
    daemon.send_signal(signal.SIGINT)
    assert daemon.wait(TIMEOUT_S) == 0
    assert "Traceback" not in (tmp_path / "daemon.log").read_text()


def test_two_lines_and_every_command_suffice_on_its_machine(served):
    """No setting names the authority: the daemon has left its certificate for programs of its user."""
    assert served.agent() == (True, "")
    status = served.cli("status", "--json")
    assert (status.returncode, json.loads(status.stdout)["counts"]["rollouts"]) == (0, 1)
    health = served.cli("health", "--ready")
    assert health.returncode == 0, health.stdout
    assert "no policy" in served.run("-c", RUNNERS_QUESTION).stderr


def test_elsewhere_the_authority_is_named(served, authority):
    stranger = served.stranger()
    for variable in ("LIGHTNING_CA_FILE", "SSL_CERT_FILE"):
        assert served.agent(**stranger, **{variable: str(authority.file)}) == (True, "")
    arrived, said = served.agent(2, **stranger)
    assert not arrived
    assert said.count("\n") == 1
    assert "is not trusted: unable to get local issuer certificate. Set LIGHTNING_CA_FILE" in said
    assert "Set LIGHTNING_CA_FILE" in served.run("-c", RUNNERS_QUESTION, **stranger).stderr


def test_a_runner_heeds_the_authority_that_the_program_names(served, authority):
    unnamed = dict.fromkeys(("LIGHTNING_ENDPOINT", "LIGHTNING_TOKEN", "LIGHTNING_CA_FILE"), "")
    stranger = served.stranger()
    told = served.url, stranger.pop("LIGHTNING_TOKEN"), str(authority.file)
    done = served.run("-c", RUNNER_OF_PROGRAM, *told, **stranger | unnamed)
    assert done.stdout == "r\n", done.stderr
    assert "no policy" in done.stderr


def test_our_own_agent_trusts_what_its_runner_trusts(served, authority):
    environments = {}, served.stranger(LIGHTNING_CA_FILE=str(authority.file)), served.stranger()
    done = served.run("-c", AGENT_OF_OURS, json.dumps(environments))
    assert done.returncode == 0, done.stderr
    said = [(served.folder / f"said-{number}").read_text() for number in range(len(environments))]
    assert ["add a [[policy]] and start the daemon again" in one for one in said] == [True, True, False]
    assert "unable to get local issuer certificate" in said[2]


def test_another_authority_another_name_and_plain_http_are_one_sentence_each(served, authority, tmp_path):
    other = type(authority)(tmp_path, "Someone else")
    stranger = served.stranger()
    asked = {
        "unable to get local issuer certificate": {"LIGHTNING_CA_FILE": str(other.file)},
        "its certificate is for another name": {
            "LIGHTNING_CA_FILE": str(authority.file),
            "LIGHTNING_ENDPOINT": f"https://localhost:{served.port}",
        },
        "write https:// in LIGHTNING_ENDPOINT": {"LIGHTNING_ENDPOINT": f"http://127.0.0.1:{served.port}"},
        "cannot be read: No such file": {"LIGHTNING_CA_FILE": str(tmp_path / "absent.pem")},
        "holds no certificate": {"LIGHTNING_CA_FILE": str(served.folder / "lightning.toml")},
    }
    # Without a token nothing is proven beforehand: the spans come, are not taken, and are not put aside either.
    plain = {"LIGHTNING_TOKEN": "none", "LIGHTNING_ENDPOINT": f"http://127.0.0.1:{served.port}"}
    *sentences, unproven = served.refused_agents([stranger | environment for environment in (*asked.values(), plain)])
    for expected, said in zip(asked, sentences, strict=True):
        assert expected in said
        assert said.count("\n") == 1, said
    assert "answers 426" in unproven.replace("\n", "")
    assert "Write https:// in LIGHTNING_ENDPOINT" in unproven
    assert not list(served.folder.rglob("*.rejected"))


def test_what_does_not_speak_tls_is_told_apart(served, tmp_path):
    """The other way round: https in the endpoint of a daemon without."""
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from threading import Thread

    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as plain:
        Thread(target=plain.serve_forever, args=(0.02,), daemon=True).start()
        endpoint = f"https://127.0.0.1:{plain.server_port}"
        arrived, said = served.agent(2, **served.stranger(LIGHTNING_ENDPOINT=endpoint))
        plain.shutdown()
    assert not arrived
    assert "does not speak TLS: write http:// in LIGHTNING_ENDPOINT" in said


def test_a_certificate_that_cannot_be_used_is_said_before_anything_starts(lightning, tmp_path, authority):
    cert, key = authority.sign("gpu-box", file="open")
    key.chmod(0o644)
    (tmp_path / "lightning.toml").write_text(f'[daemon]\ntls_cert = "{cert}"\ntls_key = "{key}"\n')
    done = lightning.run("serve", cwd=tmp_path, timeout=TIMEOUT_S)
    assert done.returncode == 78
    assert "is open to other users (mode 644): chmod 600" in " ".join(done.stderr.split())

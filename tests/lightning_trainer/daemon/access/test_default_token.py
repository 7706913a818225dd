"""A daemon makes a token at its first start: its user's own clients find it, and nobody else comes in."""

import errno
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lightning_trainer.cli.daemon.running_daemon import daemon_client
from lightning_trainer.config import Config, DaemonConfig, MetricsConfig
from lightning_trainer.daemon.access.identity import identity_of_daemon
from lightning_trainer.daemon.access.token import token_for_clients, token_of_daemon
from lightning_trainer.errors import ConfigError, LightningError

pytestmark = pytest.mark.process

AGENT = """
import lightning_instrumentation as lt
with lt.rollout("t"):
    pass
assert lt.flush(30), lt.stats()
"""
EARLY_AGENT = """
import socket, sys, time
from lightning_instrumentation.access.known import known_daemon
while True:
    try:
        socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=60).close()
        break
    except ConnectionRefusedError:
        time.sleep(0.001)  # so that the daemon gets the core
assert known_daemon(f"http://127.0.0.1:{sys.argv[1]}") is not None
"""
TIMEOUT_S = 120


def test_it_is_made_once_for_its_owner_alone(tmp_path):
    config = DaemonConfig(state_dir=tmp_path)
    token = token_of_daemon(config)
    assert token is not None
    assert len(token) >= 43
    assert token_of_daemon(config) == token == token_for_clients(config)
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600


def test_the_configurations_goes_first_and_none_is_none(tmp_path):
    token_of_daemon(DaemonConfig(state_dir=tmp_path))
    assert token_of_daemon(DaemonConfig(state_dir=tmp_path, token="0123456789abcdef")) == "0123456789abcdef"
    assert token_of_daemon(DaemonConfig(state_dir=tmp_path, token="none")) is None
    assert token_for_clients(DaemonConfig(state_dir=tmp_path, token="none")) is None


def test_the_environment_holds_it_where_the_configuration_says_so(tmp_path, monkeypatch, caplog):
    token_of_daemon(DaemonConfig(state_dir=tmp_path))  # made before there was a token_env
    config = DaemonConfig(state_dir=tmp_path, token_env="LIGHTNING_TOKEN")
    monkeypatch.delenv("LIGHTNING_TOKEN", raising=False)
    with pytest.raises(ConfigError, match=r"the environment has no LIGHTNING_TOKEN, which token_env names: set it"):
        token_of_daemon(config)
    assert token_for_clients(config) is None
    for wrong in ("short", "none", "a token with a line\nbreak"):
        monkeypatch.setenv("LIGHTNING_TOKEN", wrong)
        with pytest.raises(ConfigError, match="LIGHTNING_TOKEN, which token_env names, holds no token") as refused:
            token_of_daemon(config)
        assert wrong not in str(refused.value)
    monkeypatch.setenv("LIGHTNING_TOKEN", "0123456789abcdef")
    assert token_of_daemon(config) == "0123456789abcdef" == token_for_clients(config)
    assert MetricsConfig(token_env="LIGHTNING_TOKEN").given_token() == "0123456789abcdef"
    assert caplog.messages == []


@pytest.mark.parametrize("section", [DaemonConfig, MetricsConfig])
def test_a_token_is_given_in_one_way(section):
    with pytest.raises(ValueError, match="token and token_env are both set; leave one of them out"):
        section(token="0123456789abcdef", token_env="LIGHTNING_TOKEN")
    with pytest.raises(ValueError, match="token_env"):
        section(token_env="not a name")


@pytest.mark.parametrize("given", [None, "fedcba9876543210", "none"])
def test_a_token_of_the_environment_that_is_not_the_daemons_is_reported(given, tmp_path, monkeypatch, caplog):
    config = DaemonConfig(state_dir=tmp_path, token=given)
    for value, said in (("", 0), (token_of_daemon(config) or "none", 0), ("0123456789abcdef", 1)):
        monkeypatch.setenv("LIGHTNING_TOKEN", value)
        token_of_daemon(config)
        assert len(caplog.messages) == said
    assert "LIGHTNING_TOKEN is set and is not this daemon's token" in caplog.text
    assert "0123456789abcdef" not in caplog.text


@pytest.mark.parametrize("proof", [None, "of another token"])
def test_a_command_advises_nothing_that_it_does_not_read(proof, tmp_path):
    """The token was changed in the configuration; before, the advice was to set LIGHTNING_TOKEN."""

    class Started(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = json.dumps({"proof": proof}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    config = Config(daemon=DaemonConfig(state_dir=tmp_path, token="0123456789abcdef"))
    with ThreadingHTTPServer(("127.0.0.1", 0), Started) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        with pytest.raises(LightningError, match="if that was changed, restart the daemon") as refused:
            daemon_client(f"http://127.0.0.1:{server.server_port}", config)
        server.shutdown()
    assert "LIGHTNING_TOKEN" not in str(refused.value)


def test_a_command_names_the_variable_that_is_not_set(tmp_path, monkeypatch):
    monkeypatch.delenv("TOKEN_OF_TESTS", raising=False)
    config = Config(daemon=DaemonConfig(state_dir=tmp_path, token_env="TOKEN_OF_TESTS"))
    with pytest.raises(ConfigError, match="the environment has no TOKEN_OF_TESTS, which token_env names"):
        daemon_client("http://127.0.0.1:9", config)


def test_a_file_that_holds_no_token_is_named(tmp_path):
    (tmp_path / "token").write_text("short")
    with pytest.raises(ConfigError, match="delete it"):
        token_of_daemon(DaemonConfig(state_dir=tmp_path))


def test_a_disk_that_is_full_leaves_nothing_that_the_next_start_takes_for_a_token(tmp_path, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    config = DaemonConfig(state_dir=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ConfigError, match=r"cannot be kept in .*token: No space left on device"):
            token_of_daemon(config)
        with pytest.raises(ConfigError, match="the daemon's id cannot be kept"):
            identity_of_daemon(tmp_path, config.url(), None)
    assert list(tmp_path.iterdir()) == []
    assert token_of_daemon(config) == token_of_daemon(config)
    assert identity_of_daemon(tmp_path, config.url(), None) == identity_of_daemon(tmp_path, config.url(), None)


def test_a_daemon_that_shares_its_store_proves_the_stores_id_and_still_takes_what_waits_for_its_own(tmp_path):
    own = identity_of_daemon(tmp_path, "http://127.0.0.1:1", "a-token")
    shared = own.shared_as("f" * 32)
    assert (shared.daemon, shared.owners) == ("f" * 32, ("f" * 32, *own.owners))
    assert own.shared_as(own.daemon) == own


def test_what_is_no_id_is_named(tmp_path):
    (tmp_path / "daemon-id").write_text("../../somewhere")
    with pytest.raises(ConfigError, match="holds no id of 32 hexadecimal digits: delete it"):
        identity_of_daemon(tmp_path, "http://127.0.0.1:1", None)


@pytest.fixture
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def serve(lightning, tmp_path, port):
    """Start a daemon that records, as a process; it is stopped at the end."""
    running = []

    def start(settings: str = "", **environment: str) -> Any:
        (tmp_path / "lightning.toml").write_text(f'[daemon]\nport = {port}\nstate_dir = "state"\n{settings}')
        with (tmp_path / "daemon.log").open("ab") as log:
            env = os.environ | environment
            running.append(lightning.start("serve", cwd=tmp_path, env=env, stdout=log, stderr=log))
        deadline = time.monotonic() + TIMEOUT_S
        while status(f"http://127.0.0.1:{port}/healthz") != 200:
            assert running[-1].poll() is None, (tmp_path / "daemon.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return running[-1]

    yield start
    for process in running:
        stop(process)


def stop(process: Any) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        process.wait(TIMEOUT_S)


def status(url: str, **headers: str) -> int | None:
    request = urllib.request.Request(url, headers={name.replace("_", "-"): value for name, value in headers.items()})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def run(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def test_two_lines_suffice_and_a_stranger_stays_outside(lightning, serve, tmp_path, port):
    serve()
    url = f"http://127.0.0.1:{port}"
    assert status(f"{url}/lightning/status") == 401
    assert status(f"{url}/lightning/status", authorization="Bearer not-needed-on-loopback") == 401
    printed = lightning.run("token", cwd=tmp_path)
    assert (printed.returncode, printed.stderr) == (0, "")
    token = printed.stdout.strip()
    assert status(f"{url}/lightning/status", authorization=f"Bearer {token}") == 200
    assert status(f"{url}/lightning/status", x_lightning_token=token) == 200
    agent = run(tmp_path, "-c", AGENT, LIGHTNING_ENDPOINT=url)
    assert (agent.returncode, agent.stderr) == (0, "")
    counts = json.loads(lightning.run("status", "--json", cwd=tmp_path).stdout)["counts"]
    assert counts["rollouts"] == 1
    assert token not in (tmp_path / "daemon.log").read_text()


def test_an_agent_that_started_before_the_daemons_first_start_finds_the_token(serve, port):
    agent = subprocess.Popen([sys.executable, "-c", EARLY_AGENT, str(port)])
    serve()
    assert agent.wait(TIMEOUT_S) == 0


def test_the_token_outlives_the_daemon_and_comes_back_with_it(lightning, serve, tmp_path, port):
    first = serve()
    token = lightning.run("token", cwd=tmp_path).stdout
    stop(first)
    assert lightning.run("token", cwd=tmp_path).stdout == token
    serve()
    assert status(f"http://127.0.0.1:{port}/lightning/status", authorization=f"Bearer {token.strip()}") == 200


def test_switched_off_it_says_so_and_lets_everybody_in(lightning, serve, tmp_path, port):
    serve('token = "none"\n')
    assert status(f"http://127.0.0.1:{port}/lightning/status") == 200
    assert lightning.run("token", cwd=tmp_path).stdout == "none\n"
    (said,) = (line for line in (tmp_path / "daemon.log").read_text().splitlines() if " WARNING " in line)
    assert 'token = "none" in [daemon]: everybody who can reach' in said
    assert said.endswith("may read what is recorded, reward and roll back")


def test_a_token_of_the_environment_is_in_no_file_of_the_state_folder(lightning, serve, tmp_path, port):
    given = "token-of-the-environment"
    serve('token_env = "OUR_TOKEN"\n[metrics]\ntoken_env = "SCRAPERS"\n', OUR_TOKEN=given, SCRAPERS=given[::-1])
    url = f"http://127.0.0.1:{port}"
    assert status(f"{url}/lightning/status", authorization=f"Bearer {given}") == 200
    assert status(f"{url}/lightning/status", authorization=f"Bearer {given[::-1]}") == 401
    assert status(f"{url}/metrics", authorization=f"Bearer {given[::-1]}") == 200
    assert not (tmp_path / "state" / "token").exists()
    assert lightning.run("status", cwd=tmp_path).returncode == 0  # finds it as an agent of this user does
    assert lightning.run("token", cwd=tmp_path).stdout == f"{given}\n"


def test_a_daemon_whose_environment_lacks_a_token_does_not_start(lightning, tmp_path):
    for section in ("", "[metrics]\n"):
        (tmp_path / "lightning.toml").write_text(f'[daemon]\nport = 0\n{section}token_env = "OUR_TOKEN"\n')
        done = lightning.run("serve", cwd=tmp_path)
        assert done.returncode == 78
        assert done.stderr.strip() == (
            "error: the environment has no OUR_TOKEN, which token_env names: set it where this runs"
        )


def test_before_the_first_start_there_is_none_to_print(lightning, tmp_path):
    (tmp_path / "lightning.toml").write_text('[daemon]\nport = 1\nstate_dir = "state"\n')
    done = lightning.run("token", cwd=tmp_path)
    assert done.returncode == 2
    assert "the first `lightning-trainer serve` makes it" in " ".join(done.stderr.split())

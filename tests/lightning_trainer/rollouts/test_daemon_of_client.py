"""Which daemon a runner asks, and an attempt in another process records for: the one that the client was told."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlparse

import lightning_instrumentation as lt
import pytest
from lightning_instrumentation.access.proof import PATH, proof

from lightning_trainer.environments.agent import ChatAgent
from lightning_trainer.rollouts import Runner
from lightning_trainer.rollouts.daemon_client import daemon_of_client
from lightning_trainer.rollouts.on_ray import told_endpoint
from tests.lightning_trainer.environments.worlds import Guess  # pyright: ignore[reportMissingImports]

BOX = "http://gpu-box:8321"


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch, tmp_path: Path) -> Iterator[None]:
    for name in ("LIGHTNING_ENDPOINT", "LIGHTNING_TOKEN", "LIGHTNING_CA_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LIGHTNING_SPOOL_DIR", str(tmp_path))
    monkeypatch.setenv("LIGHTNING_ROUTE", "0")
    lt.shutdown(0)
    yield
    lt.shutdown(0)


def test_an_attempt_on_ray_records_for_the_endpoint_that_the_code_names(monkeypatch) -> None:
    assert told_endpoint() is None
    lt.init()
    assert told_endpoint() is None  # a node may have another way to the daemon
    lt.init(f"{BOX}/v1")
    assert told_endpoint() == BOX
    monkeypatch.setenv("LIGHTNING_ENDPOINT", BOX)
    assert told_endpoint() is None
    monkeypatch.setenv("LIGHTNING_ENDPOINT", "nonsense")
    assert told_endpoint() == BOX


class Daemon(BaseHTTPRequestHandler):
    """Has a token, and one policy, which has done 7 steps."""

    def log_message(self, format: str, *args: object) -> None:
        pass

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        url = urlparse(self.path)
        document: dict[str, object] = {"error": {"message": f"no {url.path}"}}
        if url.path == PATH:
            document = {"proof": proof("the-token", parse_qs(url.query)["nonce"][0])}
        elif url.path == "/lightning/policies/p" and self.headers["authorization"] == "Bearer the-token":
            document = {"steps_done": 7}
        body = json.dumps(document).encode()
        self.send_response(404 if "error" in document else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def daemon() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Daemon) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_runner_asks_the_daemon_that_the_client_was_told(daemon: str) -> None:
    lt.init(daemon, token="the-token")
    assert Runner("p", lambda task: 1.0).steps_done() == 7
    assert Runner("p", lambda task: 1.0, endpoint=f"{daemon}/").steps_done() == 7


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/traces"])
def test_a_runner_accepts_what_the_client_accepts(daemon: str, end: str, monkeypatch) -> None:
    monkeypatch.setenv("LIGHTNING_ENDPOINT", daemon + end)
    monkeypatch.setenv("LIGHTNING_TOKEN", "the-token")
    assert Runner("p", lambda task: 1.0).steps_done() == 7
    with Runner.from_environment(Guess, policy="p") as runner:
        agent = runner.environment._agent
        assert isinstance(agent, ChatAgent)
        client = agent._client()
        assert (str(client.base_url), client.api_key) == (f"{daemon}/v1/", "the-token")


def test_an_empty_variable_names_nothing(monkeypatch) -> None:
    for name in ("LIGHTNING_ENDPOINT", "LIGHTNING_TOKEN"):
        monkeypatch.setenv(name, "")
    assert daemon_of_client(None) == ("http://127.0.0.1:8321", None, None)


def test_another_daemon_is_reached_by_the_environments_settings(monkeypatch, tmp_path: Path) -> None:
    lt.init(BOX, token="the-token", ca_file=tmp_path / "ca.pem")
    assert daemon_of_client(f"{BOX}/v1") == (BOX, "the-token", tmp_path / "ca.pem")
    with lt.rollout("t"):
        pass
    monkeypatch.setenv("LIGHTNING_TOKEN", "of-the-environment")
    assert daemon_of_client("http://other:1/") == ("http://other:1", "of-the-environment", None)
    assert daemon_of_client(None) == (BOX, "the-token", tmp_path / "ca.pem")


def test_where_nothing_is_recorded_the_environment_names_it(monkeypatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    monkeypatch.setenv("LIGHTNING_ENDPOINT", f"{BOX}/v1")
    assert daemon_of_client(None) == (BOX, None, None)
    monkeypatch.setattr("lightning_instrumentation.runtime._unusable", False)

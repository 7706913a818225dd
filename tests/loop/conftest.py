"""Fixtures of the loop tests."""

import contextlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

_COMMON = """
[daemon]
port = {port}
state_dir = "state"
[engine]
dtype = "float32"
max_model_len = 256
max_num_seqs = 16
kv_cache_gib = 0.25
threads = 1
{engine}
[training]
dtype = "float32"
threads = 1
"""


class TeamDaemon:
    """A daemon of several policies, as a process, and what its state folder says."""

    def __init__(self, folder: Path, policies: str, engine: str = "") -> None:
        self.folder = folder
        self.log = folder / "daemon.log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.config = folder / "lightning.toml"
        self.config.write_text(_COMMON.format(port=self.port, engine=engine) + policies)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextlib.contextmanager
    def running(self, *names: str, timeout_s: float = 400) -> Iterator["TeamDaemon"]:
        """Serve until left; the policies of these names are ready then."""
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "lightning_trainer", "serve", "--config", str(self.config)]
            process = subprocess.Popen(command, env=self._environment(), stdout=log, stderr=log, start_new_session=True)
        try:
            deadline = time.monotonic() + timeout_s
            while not all(self._is_ready(name) for name in names):
                assert process.poll() is None, self.tail()
                assert time.monotonic() < deadline, f"not ready after {timeout_s} s: {self.tail()}"
                time.sleep(0.5)
            yield self
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                process.kill()
                raise

    def tail(self) -> str:
        return self.log.read_text()[-3000:]

    def get(self, path: str) -> dict:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=60) as response:
            return json.load(response)

    def policy(self, name: str) -> dict:
        return self.get(f"/lightning/policies/{name}")

    def processes(self, name: str) -> dict[str, int]:
        return self.get("/lightning/status")["policies"][name]["processes"]

    def script(self, path: Path, *arguments: str, **environment: str) -> str:
        """What an agents' program prints, whose base URL is the gateway's unless it is given another."""
        here = {"OPENAI_BASE_URL": f"{self.url}/v1", **environment}
        return self._output([sys.executable, str(path), *arguments], here)

    def command(self, *arguments: str) -> str:
        return self._output([sys.executable, "-m", "lightning_trainer", *arguments, "--config", str(self.config)], {})

    def logprobs(self, model: str) -> list[float]:
        """What the weights of a model think of a fixed continuation."""
        body = {"model": model, "messages": [{"role": "user", "content": "a fixed question"}], "temperature": 0}
        body |= {"max_tokens": 4, "logprobs": True, "ignore_eos": True}
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as response:
            return [token["logprob"] for token in json.load(response)["choices"][0]["logprobs"]["content"]]

    def database(self) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{self.folder / 'state' / 'lightning.sqlite'}?mode=ro", uri=True)

    def _is_ready(self, name: str) -> bool:
        try:
            return self.policy(name)["phase"] in ("collecting", "serving")
        except OSError:
            return False

    def _environment(self) -> dict[str, str]:
        return os.environ | {"LIGHTNING_ENDPOINT": self.url, "LIGHTNING_SPOOL_DIR": str(self.folder / "spool")}

    def _output(self, command: list[str], environment: dict[str, str]) -> str:
        done = subprocess.run(
            command, env=self._environment() | environment, timeout=280, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-3000:] + self.tail()
        return done.stdout


@pytest.fixture(scope="module")
def make_team_daemon(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TeamDaemon]:
    """``make_team_daemon(policies, engine="")``: a daemon that is not started; TOML, ``engine`` more of that table."""
    return lambda policies, engine="": TeamDaemon(tmp_path_factory.mktemp("team"), policies, engine)


class _Handler(BaseHTTPRequestHandler):
    """Asks for the tool once, then answers."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        last = body["messages"][-1]
        if last["role"] == "tool":
            message = {"role": "assistant", "content": f"It is {last['content']}."}
        else:
            arguments = json.dumps({"expression": "2+3"})
            call = {"id": "call-1", "type": "function", "function": {"name": "calculator", "arguments": arguments}}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        answer = json.dumps(
            {
                "id": f"elsewhere-{len(body['messages'])}",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            }
        ).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """Base URL of a model provider that is not ours, for agents whose daemon is away."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

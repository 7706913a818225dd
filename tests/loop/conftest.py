"""Fixtures of the loop tests."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

TIMEOUT_S = 400
_COMMON = """
[daemon]
port = 0
state_dir = "state"
token = "none"
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
{training}
"""


class Answer(NamedTuple):
    """To a fixed question: log-probabilities of its tokens, the version that sampled it, and the model it names."""

    logprobs: list[float]
    version: str
    model: str


class Daemon:
    """A daemon as a process of its own, what it says over HTTP, and what its state folder says."""

    def __init__(self, folder: Path, policies: str, *, engine: str = "", training: str = "") -> None:
        self.folder = folder
        self.config = folder / "lightning.toml"
        self.log = folder / "daemon.log"
        self.config.write_text(_COMMON.format(engine=engine, training=training) + policies)
        self._process: subprocess.Popen | None = None

    @property
    def url(self) -> str:
        """Where it says that it listens: every start takes a port that is free then."""
        return json.loads((self.folder / "state" / "daemon.json").read_text())["url"]

    @contextlib.contextmanager
    def running(self, *names: str) -> Iterator["Daemon"]:
        """Serve until left; the policies of these names are ready then."""
        try:
            self.start(*names)
            yield self
        finally:
            self.stop()

    def start(self, *names: str) -> None:
        """Return when the policies of these names are ready: without any, at once."""
        command = [sys.executable, "-m", "lightning_trainer", "serve", "--config", str(self.config)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=self._environment(), stdout=log, stderr=log, start_new_session=True
            )
        self.wait_until(lambda: all(self.policy(name)["phase"] in ("collecting", "serving") for name in names))

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(120)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise

    def kill(self) -> None:
        """End it with SIGKILL."""
        assert self._process is not None, "start it first"
        self._process.kill()
        self._process.wait()

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
        """Ask again and again; a daemon that ends or takes too long fails the test."""
        assert self._process is not None, "start it first"
        deadline = time.monotonic() + timeout_s
        while True:
            # Before it listens there is no announcement of its URL, or half of one.
            with contextlib.suppress(OSError, ValueError):
                if condition():
                    return
            assert self._process.poll() is None, self.tail()
            assert time.monotonic() < deadline, f"not so after {timeout_s:g} s: {self.tail()}"
            time.sleep(0.5)

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
        """What a command of ours prints."""
        return self._output([sys.executable, "-m", "lightning_trainer", *arguments, "--config", str(self.config)], {})

    def answer(self, model: str) -> Answer:
        body = {"model": model, "messages": [{"role": "user", "content": "a fixed question"}], "temperature": 0}
        body |= {"max_tokens": 4, "logprobs": True, "ignore_eos": True}
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as response:
            version = response.headers["x-lightning-policy-version"]
            document = json.load(response)
        logprobs = [token["logprob"] for token in document["choices"][0]["logprobs"]["content"]]
        return Answer(logprobs, version, document["model"])

    def logprobs(self, model: str) -> list[float]:
        """What the weights of a model think of a fixed continuation."""
        return self.answer(model).logprobs

    def database(self) -> contextlib.closing[sqlite3.Connection]:
        path = self.folder / "state" / "lightning.sqlite"
        return contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True))

    def _environment(self) -> dict[str, str]:
        return os.environ | {"LIGHTNING_SPOOL_DIR": str(self.folder / "spool")}

    def _output(self, command: list[str], environment: dict[str, str]) -> str:
        environment = self._environment() | {"LIGHTNING_ENDPOINT": self.url} | environment
        done = subprocess.run(command, env=environment, timeout=TIMEOUT_S, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:] + self.tail()
        return done.stdout


@pytest.fixture(scope="module")
def make_daemon(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Daemon]:
    """``make_daemon(policies, engine="", training="")``: a daemon that is not started; TOML, more of these tables."""
    return lambda policies, **more: Daemon(tmp_path_factory.mktemp("daemon"), policies, **more)


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
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="session")
def far_apart() -> Callable[[list[float], list[float]], float]:
    """Return the largest difference of two lists of log-probabilities."""
    return lambda one, other: max(abs(a - b) for a, b in zip(one, other, strict=True))

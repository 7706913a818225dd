"""Recorded attempts, and endpoints that answer as a script says, for whatever asks a model about attempts."""

import hashlib
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from lightning_instrumentation import semconv

from lightning_trainer.types import Span, SpanStatus

START_NS = 1_790_000_000_000_000_000


def message(role: str, *parts: Any) -> dict:
    return {"role": role, "parts": [{"type": "text", "content": p} if isinstance(p, str) else p for p in parts]}


def recorded_attempt(
    name: str,
    answers: Sequence[str] = ("It is 6.",),
    *,
    group: str = "g",
    question: str = "What is 2 * 3?",
    agents: Sequence[str] = ("solver",),
    error: str | None = None,
    mode: str = "train",
    content: bool = True,
    extra: Sequence[Span] = (),
) -> list[Span]:
    """Return an ended attempt: a call for each answer, each shown what was said before, as the gateway records them."""
    ids = {semconv.ROLLOUT_ID: f"r-{name}", semconv.ATTEMPT_ID: name, semconv.TASK_ID: "2*3"}
    digest = hashlib.blake2b(name.encode(), digest_size=12).hexdigest()
    trace_id = digest + "0" * 8
    about = {**ids, semconv.ROLLOUT_ROOT: True, semconv.GROUP_ID: group, semconv.ROLLOUT_MODE: mode}
    status = SpanStatus.OK if error is None else SpanStatus.ERROR
    end_ns = START_NS + (len(answers) + 1) * 10
    root = Span(trace_id, digest[:15] + "f", None, "rollout", START_NS, end_ns, about, status=status)
    if error is not None:
        root = Span(trace_id, root.span_id, None, "rollout", START_NS, end_ns, about, (), status, error)
    spans = [root, *extra]
    said = [message("system", "You calculate."), message("user", question)]
    for number, answer in enumerate(answers):
        written = [{**message("assistant", answer), "finish_reason": "stop"}]
        attributes: dict[str, Any] = {
            **ids,
            semconv.OPERATION: semconv.CHAT,
            semconv.AGENT_NAME: agents[number % len(agents)],
            semconv.RESPONSE_ID: f"response-{name}-{number}",
            semconv.FINISH_REASONS: ("stop",),
            semconv.POLICY: "math",
            semconv.POLICY_VERSION: 0,
            semconv.CHOICES: 1,
        }
        if content:
            attributes[semconv.INPUT_MESSAGES] = json.dumps(said)
            attributes[semconv.OUTPUT_MESSAGES] = json.dumps(written)
        span_id, begins = f"{digest[:12]}{number:04x}", START_NS + 10 * number + 1
        record = Span(trace_id, span_id, root.span_id, "chat", begins, begins + 5, attributes)
        spans.append(replace(record, scope=semconv.GATEWAY_SCOPE))
        said = [*said, message("assistant", answer), message("user", f"Go on ({number}).")]
    return spans


@dataclass
class Script:
    """What an endpoint answers, one entry a request, the last one from then on."""

    answers: list[Any] = field(default_factory=list)
    """A text, an object (as JSON), a function of the messages, ``(status, headers, body)``, or seconds to hang."""
    bodies: list[dict] = field(default_factory=list)
    """Of the requests that came, with their headers below ``headers`` and their path below ``path``."""
    refuses: dict[str, str] = field(default_factory=dict)
    """Parameters of requests that it refuses, the first one first, with its words."""
    usage: tuple[int, int] | None = (100, 20)
    most_at_once: int = 0
    url: str = ""
    _now: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def questions(self) -> list[str]:
        """The newest message of every request."""
        return [body["messages"][-1]["content"] for body in self.bodies]


def _handler(script: Script) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with script._lock:
                number = len(script.bodies)
                script.bodies.append({**body, "headers": dict(self.headers), "path": self.path})
                script._now += 1
                script.most_at_once = max(script.most_at_once, script._now)
            try:
                if (refused := next((name for name in script.refuses if name in body), None)) is not None:
                    time.sleep(0.05)  # others are under way meanwhile
                    self._send((400, {}, {"error": script.refuses[refused]}), body)
                    return
                answer = script.answers[min(number, len(script.answers) - 1)]
                text = json.dumps(body["messages"])
                answer = answer(text) if callable(answer) else answer
                self._send(answer, body)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # whoever asked has stopped waiting
            finally:
                with script._lock:
                    script._now -= 1

        def _send(self, answer: Any, body: dict) -> None:
            finish, status, headers = "stop", 200, {}
            if isinstance(answer, float):
                time.sleep(answer)
                answer = "too late"
            if isinstance(answer, tuple) and answer[0] == "cut":
                finish, answer = "length", answer[1]
            if isinstance(answer, tuple):
                status, headers, answer = answer
                self._write(status, headers, answer if isinstance(answer, bytes) else json.dumps(answer).encode())
                return
            text = answer if isinstance(answer, str) else json.dumps(answer)
            self._write(status, headers, json.dumps(self._document(text, finish, answer, body)).encode())

        def _document(self, text: str, finish: str, answer: Any, body: dict) -> dict:
            if self.path.endswith("/messages"):
                block = {"type": "text", "text": text}
                if "tools" in body and not isinstance(answer, str):
                    block = {"type": "tool_use", "id": "1", "name": body["tools"][0]["name"], "input": answer}
                usage = dict(zip(("input_tokens", "output_tokens"), script.usage or (), strict=False))
                return {
                    "content": [block],
                    "stop_reason": "max_tokens" if finish == "length" else "end",
                    "usage": usage,
                }
            usage = dict(zip(("prompt_tokens", "completion_tokens"), script.usage or (), strict=False))
            choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text}}
            return {"id": "1", "object": "chat.completion", "choices": [choice], "usage": usage}

        def _write(self, status: int, headers: dict, body: bytes) -> None:
            self.send_response(status)
            for name, value in {"content-type": "application/json", "content-length": len(body), **headers}.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    return Handler


class _Server(ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asked has gone; that is what some tests are about."""


@contextmanager
def scripted_endpoint() -> Iterator[Script]:
    """An endpoint on loopback that says what ``answers`` of what it yields has."""
    made = Script()
    server = _Server(("127.0.0.1", 0), _handler(made))
    server.daemon_threads = True
    server.block_on_close = False
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    made.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    yield made
    server.shutdown()
    server.server_close()

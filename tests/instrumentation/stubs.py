"""A daemon that only receives spans and an inference server that only pretends, both over real HTTP."""

import contextlib
import gzip
import json
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import lightning_instrumentation as lt
import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.access.proof import PATH, proof
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue


@dataclass(frozen=True)
class ReceivedSpan:
    name: str
    trace_id: str
    span_id: str
    parent_span_id: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any]
    events: tuple[tuple[str, Mapping[str, Any]], ...]
    error: str | None
    """Status message of a span with error status."""
    links: tuple[str, ...]
    """Trace ids."""
    resource: Mapping[str, Any]


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind) if kind else None


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def decode(body: bytes) -> list[ReceivedSpan]:
    return [
        ReceivedSpan(
            span.name,
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.kind,
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            _attributes(span.attributes),
            tuple((event.name, _attributes(event.attributes)) for event in span.events),
            span.status.message if span.status.code == 2 else None,
            tuple(link.trace_id.hex() for link in span.links),
            _attributes(resource.resource.attributes),
        )
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


class _ManyConnections(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who refuses our certificate is not an error of ours."""
        if not isinstance(sys.exception(), ssl.SSLError):
            super().handle_error(request, client_address)


class _Server:
    """An HTTP server in a thread; ``start`` may come late, on the port that was kept for it."""

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        # Bound and never listening: callers are refused until the start, and nobody else is given the port.
        self._kept = socket.socket()
        self._kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._kept.bind(("127.0.0.1", 0))
        self.port = self._kept.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._handler = handler
        self._server: ThreadingHTTPServer | None = None
        self._tls: ssl.SSLContext | None = None

    def speak_tls(self, context: ssl.SSLContext) -> None:
        """From the next start on."""
        self._tls = context
        self.url = self.url.replace("http:", "https:")

    def start(self) -> None:
        self._server = _ManyConnections(("127.0.0.1", self.port), self._handler)
        if self._tls is not None:
            self._server.socket = self._tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def read(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        return gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body

    def answer(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"content-length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@dataclass(frozen=True)
class Reply:
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    delay_s: float = 0.0


class Receiver(_Server):
    """``decide(spans) -> Reply`` says how a body is answered; what is answered with 2xx is stored by span id."""

    def __init__(self) -> None:
        receiver = self

        class Handler(_Handler):
            def do_GET(self) -> None:
                said: dict[str, object] = {"policies": []}
                if self.path.startswith(PATH):
                    said = {"proof": receiver.token and proof(receiver.token, self.path.partition("=")[2])}
                self.answer(200, json.dumps(said).encode(), {"content-type": "application/json"})

            def do_POST(self) -> None:
                body = self.read()
                if name := self.path.partition("/lightning/prompts/")[2]:
                    self._prompt(name, json.loads(body))
                    return
                spans = decode(body)
                reply = receiver.decide(spans)
                receiver.posts.append((len(spans), reply.status, dict(self.headers)))
                time.sleep(reply.delay_s)
                if 200 <= reply.status < 300:
                    receiver.stored.update({span.span_id: span for span in spans})
                self.answer(reply.status, reply.body, reply.headers)

            def _prompt(self, name: str, asked: dict[str, Any]) -> None:
                receiver.asked.append((name, asked))
                status, said = receiver.prompt(name, asked)
                self.answer(status, json.dumps(said).encode(), {"content-type": "application/json"})

        super().__init__(Handler)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        """For prompts."""
        self.prompt: Callable[[str, dict[str, Any]], tuple[int, Any]] = lambda name, asked: (
            404,
            {"detail": "Not Found"},
        )
        self.decide: Callable[[list[ReceivedSpan]], Reply] = lambda spans: Reply()
        self.token: str | None = None
        """That it proves to have."""
        self.stored: dict[str, ReceivedSpan] = {}
        self.posts: list[tuple[int, int, Mapping[str, str]]] = []

    def spans(self, prefix: str = "") -> list[ReceivedSpan]:
        """Return what was stored, by start; what was not captured is said to who asks for it alone."""
        found = [
            span
            for span in list(self.stored.values())
            if span.name.startswith(prefix) and (span.name != semconv.LOSSES_SPAN or prefix)
        ]
        return sorted(found, key=lambda span: span.start_ns)

    def wait_for(self, count: int, *, prefix: str = "", timeout_s: float = 10.0) -> list[ReceivedSpan]:
        deadline = time.monotonic() + timeout_s
        while len(self.spans(prefix)) < count and time.monotonic() < deadline:
            time.sleep(0.01)
        found = self.spans(prefix)
        assert len(found) >= count, f"{len(found)} of {count} spans came: {[span.name for span in found]}"
        return found


class ModelServer(_Server):
    """Answers like vLLM. The last user message decides: see ``_Choice``."""

    def __init__(self) -> None:
        server = self

        class Handler(_Handler):
            def do_POST(self) -> None:
                body: dict[str, Any] = {}
                with contextlib.suppress(ValueError):
                    body = json.loads(self.read())
                server.requests.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                form = server.formats.get(self.path.partition("?")[0])
                is_known = form or self.path.partition("?")[0].endswith(("/chat/completions", "/embeddings"))
                if not is_known:
                    self.answer(200, b"{}", {"content-type": "application/json"})
                    return
                said = form.said(body) if form else str(body["messages"][-1]["content"]) if body.get("messages") else ""
                if said.startswith("flaky") and server.fails(said):
                    self.answer(503, b"{}", {"retry-after-ms": "1"})
                    return
                if said.startswith("status"):
                    # Servers like to quote keys back.
                    message = f"no: {self.headers.get('authorization')}"
                    self.answer(int(said.split()[1]), json.dumps({"error": {"message": message}}).encode())
                elif self.path.endswith("/embeddings"):
                    embedding = {"object": "embedding", "index": 0, "embedding": [0.5]}
                    self._answer_json({"object": "list", "data": [embedding], "model": "m", "usage": None})
                elif body.get("stream"):
                    self._stream(body, said, form)
                else:
                    self._answer_json(form.whole(body) if form else server.completion(body, said))

            def _answer_json(self, document: Any) -> None:
                content, headers = json.dumps(document).encode(), {"content-type": "application/json"}
                if "gzip" in self.headers.get("accept-encoding", ""):
                    content, headers = gzip.compress(content), {**headers, "content-encoding": "gzip"}
                self.answer(200, content, headers)

            def _stream(self, body: dict[str, Any], said: str, form: Any) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                if form:
                    for event in form.events(body):
                        self._send(event.decode())
                        self._linger(said)
                    self.wfile.write(b"0\r\n\r\n")
                    return
                for number, chunk in enumerate(server.chunks(body, said)):
                    if said == "cut" and number == 3:
                        self.close_connection = True
                        return
                    self._send(f"data: {json.dumps(chunk)}\n\n")
                    self._linger(said)
                self._send("data: [DONE]\n\n")
                self.wfile.write(b"0\r\n\r\n")

            def _linger(self, said: str) -> None:
                if said.startswith("slow"):
                    self.wfile.flush()
                    time.sleep(0.2)  # whoever leaves now has not been sent the rest

            def _send(self, text: str) -> None:
                self.wfile.write(f"{len(text.encode()):x}\r\n{text}\r\n".encode())

        super().__init__(Handler)
        self.requests: list[tuple[str, Mapping[str, str], dict[str, Any]]] = []
        self.base_url = f"{self.url}/v1"
        self.formats: Mapping[str, Any] = {}
        """Further wire formats by path."""
        self._lock = threading.Lock()
        self._failed: dict[str, int] = {}

    def fails(self, said: str) -> bool:
        """``flaky 2 ...`` fails twice and then answers."""
        with self._lock:
            self._failed[said] = self._failed.get(said, 0) + 1
            return self._failed[said] <= int(said.split()[1])

    @staticmethod
    def words(body: Mapping[str, Any], said: str, index: int) -> list[str]:
        """What choice ``index`` samples, one word a token."""
        if said == "json":
            return ['{"x":', "7}"]
        return [f"answer{index} ", "to ", *(f"{word} " for word in said.split())]

    @staticmethod
    def ids(words: list[str]) -> list[int]:
        return [sum(word.encode()) for word in words]

    def completion(self, body: dict[str, Any], said: str) -> dict[str, Any]:
        prompt = self.ids(json.dumps(body["messages"]).split())
        choices = []
        for index in range(body.get("n") or 1):
            words = self.words(body, said, index)
            message: dict[str, Any] = {"role": "assistant", "content": "".join(words), "tool_calls": None}
            finish = "length" if said == "cut short" else "stop"
            if self._calls_tool(body):
                message["content"], finish = None, "tool_calls"
                message["tool_calls"] = [self._tool_call(body)]
            choices.append(
                {
                    "index": index,
                    "message": message,
                    "finish_reason": finish,
                    "logprobs": {"content": [self._logprob(i, w) for i, w in enumerate(words)]}
                    if body.get("logprobs")
                    else None,
                    "token_ids": self.ids(words) if body.get("return_token_ids") else None,
                }
            )
        return {
            "id": f"chatcmpl-{abs(hash(json.dumps(body['messages']))) % 10**8}",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": choices,
            "usage": {"prompt_tokens": len(prompt), "completion_tokens": 5, "total_tokens": len(prompt) + 5},
            "prompt_token_ids": prompt if body.get("return_token_ids") else None,
        }

    def chunks(self, body: dict[str, Any], said: str) -> list[dict[str, Any]]:
        whole = self.completion(body, said)
        head = {key: whole[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
        chunks: list[dict[str, Any]] = []

        def add(index: int, delta: dict[str, Any], finish: str | None = None, token: int | None = None, **top: Any):
            words = self.words(body, said, index)
            chosen = whole["choices"][index]
            has_token = token is not None
            chunks.append(
                {
                    **head,
                    "choices": [
                        {
                            "index": index,
                            "delta": delta,
                            "finish_reason": finish,
                            "logprobs": {"content": [self._logprob(token, words[token])]}
                            if has_token and chosen["logprobs"]
                            else None,
                            "token_ids": [chosen["token_ids"][token]] if has_token and chosen["token_ids"] else None,
                        }
                    ],
                    **top,
                }
            )

        for choice in whole["choices"]:
            index, words = choice["index"], self.words(body, said, choice["index"])
            add(index, {"role": "assistant", "content": ""}, prompt_token_ids=whole["prompt_token_ids"])
            if choice["message"]["tool_calls"]:
                call = choice["message"]["tool_calls"][0]
                arguments = call["function"]["arguments"]
                head_call = {**call, "index": 0, "function": {**call["function"], "arguments": arguments[:3]}}
                add(index, {"tool_calls": [head_call]}, token=0)
                add(index, {"tool_calls": [{"index": 0, "function": {"arguments": arguments[3:]}}]}, token=1)
                words = []
            elif body.get("return_token_ids"):
                # As vLLM: a token of which no text can be shown yet gets a chunk only where ids are asked for.
                add(index, {}, token=0)
                add(index, {"content": words[0] + words[1]}, token=1)
            else:
                add(index, {"content": words[0] + words[1]}, token=1)
            for token in range(2, len(words)):
                add(index, {"content": words[token]}, token=token)
            add(index, {}, choice["finish_reason"])
        if (body.get("stream_options") or {}).get("include_usage"):
            chunks.append({**head, "choices": [], "usage": whole["usage"]})
        return chunks

    @staticmethod
    def _calls_tool(body: Mapping[str, Any]) -> bool:
        return bool(body.get("tools")) and body["messages"][-1]["role"] != "tool"

    @staticmethod
    def _tool_call(body: Mapping[str, Any]) -> dict[str, Any]:
        function = body["tools"][0]["function"]
        arguments = dict.fromkeys(function["parameters"]["properties"], "2+3")
        return {
            "id": "call_1",
            "type": "function",
            "function": {"name": function["name"], "arguments": json.dumps(arguments)},
        }

    @staticmethod
    def _logprob(index: int, word: str) -> dict[str, Any]:
        return {"token": word, "logprob": -0.25 * (index + 1), "bytes": None, "top_logprobs": []}


@dataclass(frozen=True)
class Recording:
    """A running client and the daemon that it delivers to."""

    receiver: Receiver
    model: ModelServer

    def spans(self, prefix: str = "") -> list[ReceivedSpan]:
        assert lt.flush(10.0), lt.stats()
        return self.receiver.spans(prefix)

    def span(self, prefix: str) -> ReceivedSpan:
        found = self.spans(prefix)
        assert len(found) == 1, [span.name for span in self.receiver.spans()]
        return found[0]


@pytest.fixture
def receiver():
    server = Receiver()
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def shared_model_server():
    server = ModelServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def model(shared_model_server):
    shared_model_server.requests.clear()
    return shared_model_server


@pytest.fixture
def recording(receiver, model, tmp_path):
    """The client, delivering to a stub; the model server is a host that the user trusts."""
    lt.shutdown(0.0)
    lt.init(receiver.url, spool_dir=tmp_path, service_name="test", trusted_hosts=[f"localhost:{model.port}"])
    yield Recording(receiver, model)
    lt.shutdown(1.0)


@pytest.fixture(autouse=True)
def nothing_of_the_users(tmp_path_factory, monkeypatch):
    """No test writes into the home folder or finds a daemon by accident."""
    monkeypatch.setenv("LIGHTNING_SPOOL_DIR", str(tmp_path_factory.mktemp("spool")))
    monkeypatch.setenv("LIGHTNING_ACCESS_DIR", str(tmp_path_factory.mktemp("access")))
    monkeypatch.setenv("LIGHTNING_ENDPOINT", "http://127.0.0.1:9")
    for name in ("LIGHTNING_TOKEN", "OPENAI_API_KEY", "OPENAI_BASE_URL", "LANGSMITH_TRACING"):
        monkeypatch.delenv(name, raising=False)

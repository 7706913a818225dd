"""A server of OpenAI's chat API whose model is a function of the request."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextmanager
def serving(model: Callable[[dict[str, Any]], dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """``model(request) -> message``, or ``{"error": ...}`` for a 400; yields base URL and requests that came."""
    requests: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None: ...

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            requests.append(request)
            said = model(request)
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": None, **said}}
            answer = {"id": f"call-{len(requests)}", "object": "chat.completion", "created": 0, "model": "m"}
            body = json.dumps(said if "error" in said else {**answer, "choices": [choice]}).encode()
            self.send_response(400 if "error" in said else 200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1", requests
        server.shutdown()

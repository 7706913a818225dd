"""A daemon with a selection and a gateway, and the host that the user configured, which keeps every byte it is sent."""

import contextlib
import json
import socket
import sys
from typing import Any

import lightning_instrumentation as lt
import pytest
from lightning_instrumentation.access.proof import PATH, proof
from lightning_instrumentation.routing import router as router_module

_stubs = sys.modules["lightning_test_stubs"]
TOKEN = "daemon-token-0123456789"


class UserHost(_stubs.ModelServer):
    def __init__(self) -> None:
        super().__init__()
        self.formats = sys.modules["lightning_test_formats"].FORMATS
        host = self
        self.raw: list[bytes] = []
        """Request line, headers and body of each request, as they came."""

        stub: Any = self._handler

        class Handler(stub):
            def read(self) -> bytes:
                body = super().read()
                host.raw.append(self.raw_requestline + self.headers.as_string().encode() + body)
                return body

        self._handler = Handler


class Daemon(UserHost):
    """``select`` says who is claimed; with ``token`` set, a caller that does not send it gets 401."""

    def __init__(self) -> None:
        super().__init__()
        daemon = self
        self.policies: list[dict[str, Any]] = []
        self.paths = ["/chat/completions", "/completions", "/responses"]
        self.token: str | None = None
        self.spans: dict[str, Any] = {}
        self.challenged: dict[str, Any] | None = None
        """What it answers to a challenge instead of a proof."""
        self.challenge_status = 200
        self.asked = 0
        self.refused: list[dict[str, str]] = []
        """Headers of each request that was answered 401."""
        self._connections: list[socket.socket] = []

        stub: Any = self._handler

        class Handler(stub):
            def setup(self) -> None:
                super().setup()
                daemon._connections.append(self.connection)

            def do_GET(self) -> None:
                if self.path.startswith(PATH):
                    said = daemon.challenged
                    if said is None:
                        said = {"proof": proof(daemon.token or "someone else's", self.path.partition("=")[2])}
                    content = {"content-type": "application/json"}
                    self.answer(daemon.challenge_status, json.dumps(said).encode(), content)
                    return
                daemon.asked += 1
                if self._let_in():
                    document = {"version": "9.9", "policies": daemon.policies, "paths": daemon.paths, "new": 1}
                    self.answer(200, json.dumps(document).encode(), {"content-type": "application/json"})

            def do_POST(self) -> None:
                if not self._let_in():
                    return
                if self.path == "/v1/traces":
                    for span in _stubs.decode(_stubs._Handler.read(self)):
                        daemon.spans[span.span_id] = span
                    self.answer(200)
                else:
                    super().do_POST()

            def _let_in(self) -> bool:
                if daemon.token is None or self.headers.get("authorization") == f"Bearer {daemon.token}":
                    return True
                daemon.refused.append(dict(self.headers))
                self.answer(401, b'{"detail": "token"}')
                return False

        self._handler = Handler

    def stop(self) -> None:
        """As when a process dies: kept connections end too."""
        super().stop()
        while self._connections:
            with contextlib.suppress(OSError):
                self._connections.pop().shutdown(socket.SHUT_RDWR)

    def select(self, policy: str, *agents: str) -> None:
        self.policies.append({"name": policy, "agents": list(agents)})

    def chats(self) -> list[Any]:
        """The chat spans that came, by start."""
        assert lt.flush(10.0), lt.stats()
        chats = [span for span in self.spans.values() if span.name.startswith("chat")]
        return sorted(chats, key=lambda span: span.start_ns)


@pytest.fixture
def host():
    server = UserHost()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def daemon():
    server = Daemon()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def begin(daemon, tmp_path, monkeypatch):
    """Start the client towards the daemon; the first call waits long enough, and no selection grows old unless said."""
    monkeypatch.setattr(router_module, "FIRST_WAIT_S", 10.0)
    lt.shutdown(0.0)

    def start(refresh_s: float = 3600.0, **options: Any) -> None:
        monkeypatch.setattr(router_module, "REFRESH_S", refresh_s)
        lt.init(daemon.url, spool_dir=tmp_path, service_name="test", **options)

    yield start
    lt.shutdown(1.0)

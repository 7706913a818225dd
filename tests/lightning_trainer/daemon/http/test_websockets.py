"""A websocket is refused over HTTP, with a sentence that a client can show; over real sockets, with TLS and without."""

import contextlib
import logging
import ssl

import openai
import orjson
import pytest
from fastapi import FastAPI
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from lightning_trainer.config import DaemonConfig
from lightning_trainer.daemon.http.server import serving
from lightning_trainer.daemon.http.sockets import bind
from lightning_trainer.daemon.http.tls import read_certificate
from lightning_trainer.gateway.http_errors import answer_in_the_callers_shape

_SENTENCE = "models are called over HTTP here, not over websockets"


@pytest.fixture
def app() -> FastAPI:
    app = FastAPI()
    answer_in_the_callers_shape(app)

    @app.post("/v1/responses")
    async def respond() -> str:
        return "fine"

    return app


@contextlib.asynccontextmanager
async def _port(app, tls=None):
    with contextlib.closing(bind("127.0.0.1", 0)) as listener:
        async with serving(app, listener, tls=tls):
            yield listener.getsockname()[1]


def _refusal(error: InvalidStatus) -> tuple[int, str | None, str | None, str]:
    answer = error.response
    message = orjson.loads(answer.body or b"{}")["error"]["message"]
    return answer.status_code, answer.headers.get("upgrade"), answer.headers.get("connection"), message


async def test_openais_client_is_told_to_use_http(app, caplog) -> None:
    # Before: 403 without a body
    async with _port(app) as port, openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client:
        with pytest.raises(InvalidStatus) as raised:
            async with client.responses.connect(max_retries=0):
                pass
        status, upgrade, connection, message = _refusal(raised.value)
    assert (status, upgrade, connection) == (426, "HTTP/1.1", "close")
    assert message.startswith(_SENTENCE)
    assert "responses.create" in message
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("path", ["/v1/realtime?model=sql", "/ws/google.ai.Service.BidiGenerateContent", "/"])
async def test_every_path_says_so(app, path: str) -> None:
    async with _port(app) as port:
        with pytest.raises(InvalidStatus) as raised:
            await connect(f"ws://127.0.0.1:{port}{path}")
    status, *_, message = _refusal(raised.value)
    assert (status, message.startswith(_SENTENCE)) == (426, True)


async def test_tls_does_as_well(app, authority) -> None:
    cert, key = authority.sign("daemon.test")
    certificate = read_certificate(DaemonConfig(tls_cert=cert, tls_key=key))
    assert certificate is not None
    context = ssl.create_default_context(cafile=str(authority.file))
    async with _port(app, lambda: certificate.context) as port:
        with pytest.raises(InvalidStatus) as raised:
            await connect(f"wss://127.0.0.1:{port}/v1/responses", ssl=context, server_hostname="daemon.test")
    status, *_, message = _refusal(raised.value)
    assert (status, message.startswith(_SENTENCE)) == (426, True)

"""Whoever hangs up in the middle of a body ends a request, and it is not an error of ours."""

from collections.abc import MutableMapping

import pytest
from fastapi import FastAPI, Request

from lightning_trainer.gateway.http_errors import answer_in_the_callers_shape

pytestmark = pytest.mark.process


async def test_a_body_that_breaks_off_raises_nothing_to_the_server():
    app = FastAPI()
    answer_in_the_callers_shape(app)

    @app.post("/v1/traces")
    async def traces(request: Request) -> None:
        await request.body()

    pieces = [{"type": "http.request", "body": b"half", "more_body": True}, {"type": "http.disconnect"}]
    sent: list[MutableMapping] = []

    async def receive() -> dict:
        return pieces.pop(0)

    async def send(message: MutableMapping) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/traces",
        "raw_path": b"/v1/traces",
        "query_string": b"",
        "headers": [],
        "http_version": "1.1",
    }
    await app(scope, receive, send)
    assert sent[0]["status"] == 400

"""A caller cannot tell the gateway from the engine: what was not asked for is not there, byte for byte."""

import asyncio
import json

import httpx
import pytest

_ASKED = [
    {},
    {"n": 2},
    {"logprobs": True},
    {"logprobs": True, "top_logprobs": 2, "return_token_ids": True},
    {"return_token_ids": True},
    {"logprobs": False, "return_token_ids": False},
    {"stream_options": {"include_usage": True}},
    {"seed": 1, "stop": ["x"], "unknown_field": {"a": 1}},
]


async def _direct(gateway, **fields) -> httpx.Response:
    async with httpx.AsyncClient(base_url=gateway.engine_url, headers=gateway.endpoint.headers) as client:
        return await client.post("/v1/chat/completions", json=gateway.body(**fields))


@pytest.mark.parametrize("asked", _ASKED, ids=str)
@pytest.mark.parametrize("tool_call", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_the_answer_is_the_engines_own(gateway, asked, tool_call: bool, stream: bool) -> None:
    gateway.engine.fixed_id = "chatcmpl-fixed"
    gateway.engine.tool_call = tool_call
    direct = await _direct(gateway, stream=stream, **asked)
    through = await gateway.post(stream=stream, **asked)
    assert through.content == direct.content
    assert through.headers["content-type"] == direct.headers["content-type"]
    assert through.headers["x-lightning-policy-version"] == "3"
    sent = gateway.engine.requests[1]
    assert sent["return_token_ids"] is True
    assert sent["logprobs"] is True
    assert {**sent, **asked, "stream": stream} == {**sent, "stream": stream, **asked}


_ROUTES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/completions": {"prompt": "x"},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9},
}


@pytest.mark.parametrize("route", _ROUTES)
async def test_no_caller_chooses_a_response_id(gateway, route) -> None:
    asked = {"model": "sql", **_ROUTES[route]}
    for _ in range(2):
        headers = {"x-request-id": "mine"}
        answer = await gateway.http.post(route, json={**asked, "request_id": "mine"}, headers=headers)
        assert answer.status_code == 200, answer.text
    given = [request["request_id"] for request in gateway.engine.requests]
    assert len({*given, "mine"}) == 3
    assert {len(one) for one in given} == {32}
    assert not any("x-request-id" in headers for headers in gateway.engine.headers_seen)


@pytest.mark.parametrize("stream", [0, "", 1])
async def test_whether_it_streams_is_the_engines_to_say(gateway, stream) -> None:
    gateway.engine.fixed_id = "chatcmpl-fixed"
    direct, through = await _direct(gateway, stream=stream), await gateway.post(stream=stream)
    assert through.content == direct.content
    assert len(gateway.sink.spans) == 1


async def test_the_model_keeps_the_callers_name(open_gateway) -> None:
    async with open_gateway(of_policy={"served_name": "/models/sql"}) as gateway:
        for stream in (False, True):
            answer = await gateway.post(model="sql@v3", stream=stream)
            assert "/models/sql" not in answer.text
            assert '"model":"sql@v3"' in answer.text
        assert {request["model"] for request in gateway.engine.requests} == {"/models/sql"}


async def test_the_first_token_goes_out_before_the_second_is_sampled(gateway) -> None:
    second = asyncio.Event()

    async def pace(position: int) -> None:
        if position == 1:
            await second.wait()

    gateway.engine.pace = pace
    received = b""
    async with gateway.http.stream("POST", "/v1/chat/completions", json=gateway.body(stream=True)) as answer:
        pieces = answer.aiter_bytes()
        while b'"The"' not in received:
            received += await anext(pieces)
        assert not second.is_set()
        second.set()
        async for piece in pieces:
            received += piece
    assert received.endswith(b"data: [DONE]\n\n")


async def test_the_engines_errors_pass_through_as_they_are(gateway) -> None:
    error = {"error": {"message": "maximum context length is 2048 tokens", "type": "BadRequestError", "code": 400}}
    gateway.engine.error = (400, error)
    for stream in (False, True):
        direct, through = await _direct(gateway, stream=stream), await gateway.post(stream=stream)
        assert (through.status_code, through.content) == (400, direct.content)
    assert gateway.sink.spans == []


async def test_the_callers_mistakes_reach_the_engine_as_they_are(gateway) -> None:
    await gateway.post(top_logprobs=3)
    assert "logprobs" not in gateway.engine.requests[0]
    await gateway.post(logprobs="yes", return_token_ids="no")
    assert (gateway.engine.requests[1]["logprobs"], gateway.engine.requests[1]["return_token_ids"]) == ("yes", "no")


async def test_models_are_the_policy_and_its_live_version(gateway) -> None:
    gateway.engine.version = 12
    listed = (await gateway.http.get("/v1/models")).json()
    assert (listed["object"], [model["id"] for model in listed["data"]]) == ("list", ["sql", "sql@v12"])
    assert (await gateway.http.get("/v1/models/sql@v12")).json() == listed["data"][1]
    missing = await gateway.http.get("/v1/models/gpt-5")
    assert missing.status_code == 404
    assert "known models: sql, sql@v12" in missing.json()["error"]["message"]


@pytest.mark.parametrize(
    ("content", "status", "sentence"),
    [
        (json.dumps({"model": "gpt-5"}), 404, "there is no model 'gpt-5' here; known models: sql"),
        (json.dumps({"model": "sql@v9"}), 404, "there is no model 'sql@v9' here; known models: sql, sql@v3"),
        (json.dumps({"model": "sql@vx"}), 404, "there is no model 'sql@vx' here"),
        (json.dumps({"messages": []}), 400, "model is None; name 'sql'"),
        ("{", 400, "the body is not valid JSON"),
        ("[" * 5000, 400, "the body is not valid JSON"),
        ('{"model": "sql", "messages": "\\ud800"}', 400, "the body is not valid JSON"),
        ("[]", 400, "the body is a JSON list, not an object"),
        (" " * 70_000, 413, "more than 65536 bytes"),
    ],
)
async def test_what_is_not_for_the_engine_is_refused_in_openais_shape(open_gateway, content, status, sentence) -> None:
    async with open_gateway(max_body_bytes=65536) as gateway:
        headers = {"content-type": "application/json"}
        answer = await gateway.http.post("/v1/chat/completions", content=content, headers=headers)
        error = answer.json()["error"]
        assert (answer.status_code, set(error)) == (status, {"message", "type", "param", "code"})
        assert sentence in error["message"]
        assert gateway.engine.requests == gateway.sink.spans == []


async def test_a_body_that_is_not_said_to_be_json_is_refused(gateway) -> None:
    answer = await gateway.http.post("/v1/chat/completions", content=json.dumps(gateway.body()))
    assert answer.status_code == 415


async def test_a_version_that_changed_while_the_call_waited_is_not_passed_off_as_another(gateway) -> None:
    gateway.engine.reported_version = 2
    for stream in (False, True):
        answer = await gateway.post(model="sql@v2", stream=stream)
        assert answer.status_code == 404
        assert "known models: sql, sql@v3" in answer.json()["error"]["message"]

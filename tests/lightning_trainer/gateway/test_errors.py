"""Whatever is wrong with a call, the caller's own library prints our sentence: each provider's shape on every route."""

import json
from typing import Any

import httpx
import openai
import pytest
from fastapi import APIRouter
from google.rpc.status_pb2 import Status as RpcStatus
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from lightning_trainer.errors import StoreError

_TOKEN = "a-token-of-this-test"
_MESSAGES: list[Any] = [{"role": "user", "content": "Is it open?"}]


@pytest.fixture
async def gateway(open_gateway):
    broken = APIRouter()

    @broken.post("/v1/broken")
    @broken.post("/v1/broken/messages")
    async def bug() -> None:
        raise KeyError("a secret of somebody else")

    @broken.get("/v1/stored")
    def stored() -> None:
        raise StoreError("the store cannot be read: the server is restarting")

    @broken.get("/v1/numbered")
    async def numbered(limit: int) -> int:
        return limit

    async with open_gateway(beside=[broken], token=_TOKEN) as opened:
        yield opened


def _openai(base_url: str, api_key: str = _TOKEN) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0)


def _anthropic(base_url: str, api_key: str = _TOKEN) -> Any:
    import anthropic

    return anthropic.AsyncAnthropic(base_url=base_url, api_key=api_key, max_retries=0)


async def _of_chat(client: openai.AsyncOpenAI, model: str = "sql") -> None:
    await client.chat.completions.create(model=model, messages=_MESSAGES)


async def _of_messages(client: Any, model: str = "sql", **fields: Any) -> None:
    await client.messages.create(model=model, messages=_MESSAGES, max_tokens=8, **fields)


@pytest.mark.parametrize(
    ("base", "sentence"),
    [
        ("", "there is no route POST /chat/completions here: /v1 is missing in it; set the base URL to {url}/v1"),
        (
            "/v1/v1",
            "there is no route POST /v1/v1/chat/completions here: /v1 is 2 times in it; set the base URL to {url}/v1",
        ),
        (
            "/rollouts/r1",
            "there is no route POST /rollouts/r1/chat/completions here: /v1 is missing in it; set the base URL to "
            "{url}/rollouts/r1/v1",
        ),
        (
            "/openai/v1",
            "there is no route POST /openai/v1/chat/completions here: set the base URL to {url}/v1 or "
            "{url}/rollouts/ID/v1, and nothing else in its path",
        ),
    ],
)
async def test_openai_says_what_is_wrong_with_the_base_url(gateway, base: str, sentence: str) -> None:
    # Before: "Error code: 404 - {'detail': 'Not Found'}"
    with pytest.raises(openai.NotFoundError) as raised:
        await _of_chat(_openai(gateway.url + base))
    assert sentence.format(url=gateway.url) in str(raised.value)


async def test_langchain_says_what_is_wrong_with_the_base_url(gateway) -> None:
    model = ChatOpenAI(model="sql", base_url=gateway.url, api_key=SecretStr(_TOKEN), max_retries=0)
    with pytest.raises(openai.NotFoundError, match="/v1 is missing in it; set the base URL to"):
        await model.ainvoke("Is it open?")


async def test_anthropic_says_what_is_wrong_with_the_base_url(gateway) -> None:
    import anthropic

    with pytest.raises(anthropic.NotFoundError) as raised:
        await _of_messages(_anthropic(f"{gateway.url}/v1"))
    said = f"/v1 is 2 times in it; set the base URL to {gateway.url}"
    assert f"{said}'" in str(raised.value)
    assert raised.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]


@pytest.mark.parametrize("tail", ["/messages", "/messages/count_tokens"])
@pytest.mark.parametrize(
    ("base", "sentence"),
    [
        ("", ": /v1 is missing in it; set the base URL to {url}/v1"),
        ("/rollouts/r1", ": /v1 is missing in it; set the base URL to {url}/rollouts/r1/v1"),
        ("/anthropic", ": set the base URL to {url}/v1 or {url}/rollouts/ID/v1, and nothing else in its path"),
    ],
)
async def test_a_client_of_messages_that_adds_no_version_is_told_to_name_it(gateway, base, sentence, tail) -> None:
    # Before: the base URL that it had, since Anthropic's own clients add /v1
    answer = await gateway.http.post(f"{base}{tail}", json={})
    assert answer.status_code == 404
    assert _sentence(answer).endswith(sentence.format(url=gateway.url))


async def test_every_client_is_told_of_a_wrong_token(gateway) -> None:
    # Before: {"detail": ...}, of which openai 3 prints nothing
    import anthropic

    sentence = "the daemon's token is missing or wrong: `lightning-trainer token` prints it; send it as"
    with pytest.raises(openai.AuthenticationError, match=sentence):
        await _of_chat(_openai(f"{gateway.url}/v1", "wrong"))
    model = ChatOpenAI(model="sql", base_url=f"{gateway.url}/v1", api_key=SecretStr("wrong"), max_retries=0)
    with pytest.raises(openai.AuthenticationError, match=sentence):
        await model.ainvoke("?")
    with pytest.raises(anthropic.AuthenticationError, match=sentence) as raised:
        await _of_messages(_anthropic(gateway.url, "wrong"))
    assert raised.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]
    answer = await gateway.http.post("/v1/chat/completions", json={})
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["code"] == "invalid_api_key"


async def test_every_api_says_which_agent_nobody_claims(gateway) -> None:
    # Before: "no model 'gpt-4o'" alone, whoever asked
    import anthropic

    sentence = "no policy claims the agent 'planner'"
    base = f"{gateway.url}/rollouts/r1/agents/planner"
    with pytest.raises(openai.NotFoundError, match=sentence):
        await _of_chat(_openai(f"{base}/v1"), "gpt-4o")
    with pytest.raises(openai.NotFoundError, match=sentence):
        await _openai(f"{base}/v1").responses.create(model="gpt-4o", input="?")
    with pytest.raises(openai.NotFoundError, match=sentence):
        await _openai(f"{base}/v1").completions.create(model="gpt-4o", prompt="?")
    with pytest.raises(anthropic.NotFoundError, match=sentence):
        await _of_messages(_anthropic(base), "claude-opus-4")


async def test_a_model_that_is_not_there_is_refused_in_the_shape_of_who_asks(gateway) -> None:
    import anthropic

    with pytest.raises(openai.NotFoundError, match="there is no model 'huge' here; known models: sql, sql@v3"):
        await _openai(f"{gateway.url}/v1").models.retrieve("huge")
    with pytest.raises(anthropic.NotFoundError, match="there is no model 'huge' here; known models: sql, sql@v3"):
        await _anthropic(gateway.url).models.retrieve("huge")


def _sentence(answer: httpx.Response) -> str:
    return answer.json()["error"]["message"]


async def test_a_wrong_method_is_told_the_right_one(gateway) -> None:
    headers = {"authorization": f"Bearer {_TOKEN}"}
    answer = await gateway.http.get("/v1/chat/completions", headers=headers)
    assert answer.status_code == 405
    assert _sentence(answer) == "/v1/chat/completions is not called with GET: send POST"
    answer = await gateway.http.get("/v1/messages", headers=headers)
    assert answer.json() == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "/v1/messages is not called with GET: send POST"},
    }


async def test_a_parameter_of_the_url_that_cannot_be_read_is_named(gateway) -> None:
    answer = await gateway.http.get("/v1/numbered?limit=x", headers={"authorization": f"Bearer {_TOKEN}"})
    assert answer.status_code == 422
    assert _sentence(answer).startswith("limit: Input should be a valid integer")


@pytest.mark.parametrize("path", ["/v1/broken", "/v1/broken/messages"])
async def test_a_bug_of_ours_is_called_one_and_says_nothing_of_its_content(gateway, path: str) -> None:
    answer = await gateway.http.post(path, headers={"authorization": f"Bearer {_TOKEN}"})
    assert answer.status_code == 500
    assert _sentence(answer) == "the daemon failed on this request (KeyError): a bug of its own, its log says more"
    assert (answer.json().get("type") == "error") is path.endswith("messages")
    assert "secret" not in answer.text


async def test_a_store_that_cannot_be_read_just_now_is_no_bug_and_may_be_asked_again(gateway) -> None:
    answer = await gateway.http.get("/v1/stored", headers={"authorization": f"Bearer {_TOKEN}"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert _sentence(answer) == "the store cannot be read: the server is restarting"


async def test_an_exporter_of_spans_reads_errors_as_otlp_has_them(open_gateway) -> None:
    traces = APIRouter()
    traces.post("/v1/traces")(lambda: None)
    async with open_gateway(beside=[traces], token=_TOKEN) as gateway:
        protobuf = await gateway.http.post("/v1/traces", headers={"content-type": "application/x-protobuf"})
        in_json = await gateway.http.post("/v1/traces", content="{}", headers={"content-type": "application/json"})
        method = await gateway.http.get("/v1/traces", headers={"authorization": f"Bearer {_TOKEN}"})
    assert (protobuf.status_code, in_json.status_code, method.status_code) == (401, 401, 405)
    assert RpcStatus.FromString(protobuf.content).message.startswith("the daemon's token is missing or wrong")
    assert json.loads(in_json.content)["message"].startswith("the daemon's token is missing or wrong")


@pytest.mark.parametrize("path", ["/traces", "/v1/v1/traces", "/v1/traces/v1/traces"])
async def test_an_exporter_with_a_wrong_url_is_told_the_right_one(gateway, path: str) -> None:
    answer = await gateway.http.post(path, json={})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_such_route")
    assert _sentence(answer).endswith(f"OTEL_EXPORTER_OTLP_ENDPOINT is {gateway.url}, and LIGHTNING_ENDPOINT as well")


async def test_what_a_client_asks_of_its_provider_is_refused_with_the_reason(gateway) -> None:
    import anthropic

    client, claude = _openai(f"{gateway.url}/v1"), _anthropic(gateway.url)
    kept = "keeps no answers and no conversations, so send the whole conversation each time"
    for asked in (
        client.responses.retrieve("resp_1"),
        client.responses.cancel("resp_1"),
        client.responses.input_items.list("resp_1"),
        client.conversations.create(),
        client.chat.completions.retrieve("chatcmpl-1"),
    ):
        with pytest.raises(openai.NotFoundError, match=kept):
            await asked
    serves = "the gateway serves chat completions, completions, Responses, Messages, embeddings, and the list of models"
    for asked in (
        client.moderations.create(input="x"),
        client.responses.compact(model="sql", input="x"),
        client.files.list(),
        client.fine_tuning.jobs.list(),
        client.batches.list(),
        client.images.generate(prompt="x"),
    ):
        with pytest.raises(openai.NotFoundError, match=serves):
            await asked
    with pytest.raises(anthropic.NotFoundError, match=serves):
        await claude.messages.batches.list()


async def test_what_is_no_route_of_ours_says_where_the_routes_are(gateway) -> None:
    answer = await gateway.http.get("/favicon.ico")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_such_route")
    assert _sentence(answer) == (
        "there is no route GET /favicon.ico here; models are called below /v1, spans are sent to /v1/traces, "
        "/lightning/status says the rest"
    )

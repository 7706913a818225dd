"""Every API before a real engine: the ids in the record are the engine's own, and a call is recorded once.

Prompt ids are held against the engine's own tokenizer route, sampled ids and log-probabilities against a call of chat
completions or completions made without the gateway, and the answer against the engine's own route of the same name.
"""

import json
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.types import Fidelity

pytestmark = pytest.mark.engine

_ASKED = {"model": "tiny", "temperature": 0}
_MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Is it open?"}]
_PROMPT = {"prompt": "Is it open?", "max_tokens": 12}
_BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": _MESSAGES, "max_tokens": 12},
    "/v1/completions": _PROMPT,
    "/v1/responses": {"instructions": "Be brief.", "input": "Is it open?", "max_output_tokens": 12},
    "/v1/messages": {"system": "Be brief.", "messages": _MESSAGES[1:], "max_tokens": 12},
}


@pytest.fixture
async def gateway(open_gateway, engine):
    async with open_gateway(policy="tiny") as opened:
        opened.endpoint.base_url, opened.endpoint.headers = engine.base_url, dict(engine.process.headers)
        yield opened


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", _BODIES)
async def test_ids_are_the_engines_own_and_a_call_is_recorded_once(gateway, engine, route: str, stream: bool) -> None:
    asked = {**_ASKED, **_BODIES[route]}
    answer = await gateway.http.post(route, json={**asked, "stream": stream}, timeout=120)
    assert answer.status_code == 200, answer.text
    async with engine.client() as direct:
        prompt_ids, response_ids, logprobs = await _sampled_directly(direct, completions=route == "/v1/completions")
        same_route = (await direct.post(route, json=asked)).raise_for_status().json()
    (call,) = read_spans([await gateway.record()]).calls
    assert call.prompt_ids == prompt_ids
    assert call.response_ids == response_ids
    assert call.behavior_logprobs == pytest.approx(logprobs, abs=1e-4)
    assert (call.policy, call.policy_version, call.complete) == ("tiny", engine.version(), True)
    assert call.fidelity is Fidelity.EXACT
    assert (_streamed(answer.text) if stream else _text(answer.json())) == _text(same_route)


@pytest.mark.parametrize(
    ("route", "prefix"), zip(_BODIES, ("chatcmpl-", "cmpl-", "resp_", "msg_"), strict=True), ids=list(_BODIES)
)
async def test_the_ids_of_responses_are_the_gateways_own(gateway, route: str, prefix: str) -> None:
    asked = {**_ASKED, **_BODIES[route], "request_id": "mine"}
    headers = {"x-request-id": "mine"}
    answers = [(await gateway.http.post(route, json=asked, headers=headers, timeout=120)).json() for _ in range(2)]
    given = [answer["id"] for answer in answers]
    assert all(one.startswith(prefix) and len(one) == len(prefix) + 32 for one in given)
    assert given[0] != given[1]
    calls = read_spans(gateway.sink.spans).calls
    assert [call.response_id for call in calls] == given


async def _sampled_directly(
    direct: httpx.AsyncClient, *, completions: bool
) -> tuple[tuple[int, ...], tuple[int, ...], list[float]]:
    """Return prompt ids, sampled ids and log-probabilities, of requests that no code of the gateway has touched."""
    prompt = {"prompt": _PROMPT["prompt"]} if completions else {"messages": _MESSAGES}
    tokenized = (await direct.post("/tokenize", json={"model": "tiny", **prompt})).raise_for_status().json()
    extra = {"logprobs": 0} if completions else {"logprobs": True, "top_logprobs": 0}
    path = "/v1/completions" if completions else "/v1/chat/completions"
    body = {**_ASKED, **prompt, **extra, "max_tokens": 12, "return_token_ids": True}
    (choice,) = (await direct.post(path, json=body)).raise_for_status().json()["choices"]
    said = choice["logprobs"]
    logprobs = said["token_logprobs"] if completions else [entry["logprob"] for entry in said["content"]]
    return tuple(tokenized["tokens"]), tuple(choice["token_ids"]), logprobs


def _text(body: Mapping[str, Any]) -> str:
    if "choices" in body:
        (choice,) = body["choices"]
        return choice["message"]["content"] if "message" in choice else choice["text"]
    blocks = body["content"] if "content" in body else [c for item in body["output"] for c in item["content"]]
    return "".join(block["text"] for block in blocks)


def _streamed(events: str) -> str:
    """The text that a stream brought, in whichever of the four forms."""
    text = ""
    for line in events.splitlines():
        if not line.startswith("data: {"):
            continue
        event = json.loads(line.removeprefix("data: "))
        for choice in event.get("choices", ()):
            text += choice.get("text") or choice.get("delta", {}).get("content") or ""
        if event.get("type") == "response.output_text.delta":
            text += event["delta"]
        elif event.get("type") == "content_block_delta":
            text += event["delta"].get("text", "")
    return text


_USED: Any = [
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "sh", "input": {"c": "ls"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "door"}]},
    {"role": "system", "content": "Late."},
]


async def test_messages_are_counted_as_they_are_rendered_and_bounded_by_the_context(gateway) -> None:
    messages = [*_MESSAGES[1:], *_USED, {"role": "user", "content": "Well?"}]
    asked = {"model": "tiny", "thinking": {"type": "enabled", "budget_tokens": 31999}, "messages": messages}
    counted = await gateway.http.post("/v1/messages/count_tokens", json=asked, timeout=120)
    assert counted.status_code == 200, counted.text
    answer = await gateway.http.post("/v1/messages", json={**asked, "max_tokens": 32000}, timeout=120)
    assert answer.status_code == 200, answer.text
    (call,) = read_spans([await gateway.record()]).calls
    assert counted.json() == {"input_tokens": len(call.prompt_ids)}
    assert answer.json()["usage"]["input_tokens"] == len(call.prompt_ids)
    assert call.fidelity is Fidelity.EXACT

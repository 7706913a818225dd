"""Prompt tokens are counted as the call itself would be rendered, and nothing is sampled or recorded."""

from typing import Any

import openai
import pytest
from fastapi import Request

_ASKED: dict[str, Any] = {"model": "sql", "input": "Is it open?"}
_TOOL: Any = {"type": "function", "name": "calculator", "parameters": {"type": "object"}, "strict": False}


@pytest.fixture
async def counting(gateway):
    """A gateway whose engine counts seven tokens in every prompt."""

    async def tokenize(request: Request) -> dict[str, Any]:
        gateway.tokenized, gateway.owner = await request.json(), request.headers.get("x-lightning-conversation")
        return {"count": 7, "max_model_len": 64, "tokens": [1] * 7}

    gateway.engine.app.post("/tokenize")(tokenize)
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        gateway.client = client
        yield gateway


async def test_openais_client_counts_a_responses_input(counting) -> None:
    # Before: 404 for /v1/responses/input_tokens
    counted = await counting.client.responses.input_tokens.count(
        **_ASKED, instructions="Be brief.", tools=[_TOOL], tool_choice="auto", reasoning={"effort": "none"}
    )
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", 7)
    function = {name: value for name, value in _TOOL.items() if name != "type"}
    assert counting.tokenized == {
        "model": "sql",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Is it open?"}],
        "tools": [{"type": "function", "function": function}],
        "chat_template_kwargs": {"reasoning_effort": "none", "enable_thinking": False},
    }
    assert counting.engine.requests == counting.sink.spans == []


async def test_what_a_response_refuses_is_not_counted(counting) -> None:
    with pytest.raises(openai.BadRequestError, match="previous_response_id is not supported here"):
        await counting.client.responses.input_tokens.count(**_ASKED, previous_response_id="resp_1")
    with pytest.raises(openai.NotFoundError, match="known models: sql"):
        await counting.client.responses.input_tokens.count(model="gpt-5", input="?")


async def test_what_the_template_gets_of_a_call_is_counted(counting) -> None:
    # Before: left out of the count, or in the reverse order of precedence
    more = {
        "reasoning_effort": "low",
        "documents": [{"text": "Opening hours."}],
        "add_special_tokens": True,
        "mm_processor_kwargs": {"size": 1},
        "chat_template_kwargs": {"reasoning_effort": "high", "enable_thinking": False},
    }
    await counting.http.post("/v1/responses/input_tokens", json={**_ASKED, **more})
    told = counting.tokenized["chat_template_kwargs"]
    assert told == {"reasoning_effort": "low", "enable_thinking": False, "documents": more["documents"]}
    assert counting.tokenized["add_special_tokens"] is True
    assert counting.tokenized["mm_processor_kwargs"] == {"size": 1}


@pytest.mark.parametrize("path", ["responses/input_tokens", "messages/count_tokens"])
async def test_the_engine_knows_whose_conversation_is_counted(counting, path: str) -> None:
    # Before: words that come back were counted as they are tokenized anew, not as they were sampled
    asked = {**_ASKED, "messages": [{"role": "user", "content": "Is it open?"}]}
    counted = await counting.http.post(f"/rollouts/r-1/v1/{path}", json=asked)
    assert counted.status_code == 200, counted.text
    owner = counting.owner
    assert owner is not None
    counting.engine.headers_seen.clear()
    route = path.partition("/")[0]
    answered = await counting.http.post(f"/rollouts/r-1/v1/{route}", json={**asked, "max_tokens": 8})
    assert answered.status_code == 200, answered.text
    assert counting.engine.headers_seen[0]["x-lightning-conversation"] == owner

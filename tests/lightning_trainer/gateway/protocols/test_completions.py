"""``/v1/completions``: prompts of text or token ids, whole and streamed, with the exact tokens recorded."""

import httpx
import openai
import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.spans.packing import unpack_token_ids

from lightning_trainer.ingest.reading import read_spans


async def _post(gateway, url: str = "", **fields) -> httpx.Response:
    body = {"model": "sql", "prompt": "Is it open?", **fields}
    async with httpx.AsyncClient(headers=gateway.endpoint.headers) as client:
        return await client.post(f"{url or gateway.url}/v1/completions", json=body)


@pytest.mark.parametrize("asked", [{}, {"n": 2}, {"logprobs": 0}, {"logprobs": 1, "return_token_ids": True}], ids=str)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_answer_is_the_engines_own(gateway, asked, stream: bool) -> None:
    gateway.engine.fixed_id = "cmpl-fixed"
    direct = await _post(gateway, gateway.engine_url, stream=stream, **asked)
    through = await _post(gateway, stream=stream, **asked)
    assert through.content == direct.content
    assert (gateway.engine.requests[1]["return_token_ids"], "logprobs" in gateway.engine.requests[1]) == (True, True)


@pytest.mark.parametrize("stream", [False, True])
async def test_every_choice_is_recorded_exactly(gateway, stream: bool) -> None:
    assert (await _post(gateway, stream=stream, n=2, max_tokens=9)).status_code == 200
    span = await gateway.record()
    assert span.attributes[semconv.OPERATION] == "text_completion"
    assert unpack_token_ids(span.attributes[semconv.PROMPT_TOKEN_IDS]) == (11, 12, 13)
    assert "Is it open?" in span.attributes[semconv.INPUT_MESSAGES]
    calls = read_spans([span]).calls
    assert [call.response_ids for call in calls] == [tuple(gateway.engine.tokens(index)) for index in (0, 1)]
    assert [call.behavior_logprobs for call in calls] == [tuple(gateway.engine.logprobs(index)) for index in (0, 1)]
    assert all(call.complete for call in calls)


@pytest.mark.parametrize("prompt", [[11, 12, 13], ["Is it open?"], [[11, 12, 13]]])
async def test_one_prompt_may_come_in_any_shape(gateway, prompt) -> None:
    assert (await _post(gateway, prompt=prompt)).status_code == 200
    sent = gateway.engine.requests[0]["prompt"]
    assert sent == (prompt if isinstance(prompt[0], int) else prompt[0])
    assert len(gateway.sink.spans) == 1


@pytest.mark.parametrize(
    ("fields", "sentence"), [({"prompt": ["a", "b"]}, "2 prompts"), ({"echo": True}, "echo = true is not supported")]
)
async def test_what_has_no_exact_record_is_refused(gateway, fields, sentence: str) -> None:
    answer = await _post(gateway, **fields)
    assert (answer.status_code, sentence in answer.json()["error"]["message"]) == (400, True)
    assert gateway.engine.requests == []


async def test_the_openai_client(gateway) -> None:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        whole = await client.completions.create(model="sql", prompt="Is it open?")
        stream = await client.completions.create(model="sql", prompt=[11, 12, 13], stream=True)
        streamed = "".join([chunk.choices[0].text async for chunk in stream])
    assert whole.choices[0].text == streamed == "The café is open."

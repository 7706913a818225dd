"""No caller's wish and no engine's answer leaves a call that looks whole without its tokens."""

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.ingest.reading import read_spans

_SAID = [{"role": "user", "content": "x"}]
_ROUTES = {
    "/v1/chat/completions": {"messages": _SAID},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": _SAID, "max_tokens": 9},
}


@pytest.mark.parametrize("route", _ROUTES)
async def test_hidden_reasoning_would_hide_the_tokens_and_is_refused(gateway, route: str) -> None:
    """Before: vLLM's parsers then hide ids and logprobs, and such calls were recorded as complete and never trained."""
    asked = {"model": "sql", **_ROUTES[route]}
    answer = await gateway.http.post(route, json={**asked, "include_reasoning": False})
    assert answer.status_code == 400
    assert "include_reasoning = False is not supported here" in answer.json()["error"]["message"]
    assert gateway.engine.requests == gateway.sink.spans == []
    assert (await gateway.http.post(route, json={**asked, "include_reasoning": True})).status_code == 200


async def test_an_answer_without_token_ids_is_an_error(gateway) -> None:
    gateway.engine.hides_tokens = True
    answer = await gateway.post()
    assert answer.status_code == 502
    assert "the engine gave no token ids of its answer" in answer.json()["error"]["message"]
    assert gateway.sink.spans == []


async def test_a_stream_without_token_ids_ends_with_an_error_and_is_no_complete_call(gateway) -> None:
    gateway.engine.hides_tokens = True
    answer = await gateway.post(stream=True)
    assert "the engine gave no token ids of its answer" in answer.text
    assert "[DONE]" not in answer.text
    assert (await gateway.record()).attributes[semconv.STREAM_COMPLETE] is False


@pytest.mark.parametrize("stream", [False, True])
async def test_top_logprobs_null_does_not_turn_logprobs_off(gateway, stream: bool) -> None:
    """Before: vLLM gives none then, so the call was dropped as ``no_logprobs``."""
    await gateway.post(stream=stream, logprobs=True, top_logprobs=None)
    (call,) = read_spans([await gateway.record()]).calls
    assert call.behavior_logprobs == tuple(gateway.engine.logprobs(0))

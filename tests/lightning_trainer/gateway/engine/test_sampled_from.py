"""Before a real engine: what the record says tokens were drawn from gives their log-probabilities, whatever was asked.

The distribution is computed in plain PyTorch from the model's own logits, in the order of
``lightning_trainer.sampling``.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from lightning_instrumentation import semconv
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.sampling import Shaping, entries_of
from lightning_trainer.serving.publication import Probe, Publication, Tolerance
from lightning_trainer.serving.shared_memory import file_checksum
from lightning_trainer.types import Call

pytestmark = pytest.mark.engine

# Short: the engine's prompts have 256 tokens at most, and its tokenizer has a token for each letter.
_MESSAGES = [{"role": "system", "content": "Be"}, {"role": "user", "content": "Open?"}]
_CHAT = {"model": "tiny", "messages": _MESSAGES, "max_tokens": 24}
_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "n": {"enum": [1, 22]}}, "required": ["city"]}
_FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": _SCHEMA}}
_ANY = {"type": "object"}
_TOOLS = [{"type": "function", "function": {"name": "f", "parameters": _ANY}}]
_NAMED = {"type": "function", "function": {"name": "f"}}
_PENALTIES = {"presence_penalty": 0.7, "frequency_penalty": 0.5, "repetition_penalty": 1.3}
_BIAS = {"logit_bias": {"70": 6.0, "80": 5.5, "90": -100}}

RESTRICTED: dict[str, dict[str, Any]] = {
    "top_p": {"top_p": 0.6, "temperature": 0.7},
    "top_k": {"top_k": 7},
    "min_p": {"min_p": 0.2, "temperature": 1.3},
    "json_schema": {"response_format": _FORMAT},
    "json_object": {"response_format": {"type": "json_object"}, "temperature": 0.5},
    "named tool": {"tools": _TOOLS, "tool_choice": _NAMED},
    "required tool": {"tools": _TOOLS, "tool_choice": "required"},
    "regex": {"structured_outputs": {"regex": "(yes|no)[0-9]{2,9}"}},
    "choice": {"structured_outputs": {"choice": ["sunny", "snowy", "a storm"]}},
    "greedy json": {"response_format": _FORMAT, "temperature": 0.0, "top_p": 0.3},
    "allowed ids": {"allowed_token_ids": [70, 71, 72, 73, 200]},
    "bad words": {"bad_words": ["a", "b", "open"]},
    "min_tokens": {"min_tokens": 6, "stop_token_ids": [70, 71, 72]},
    "everything": {**_PENALTIES, **_BIAS, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "response_format": _FORMAT},
}
FREE: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 0.8},
    "greedy": {"temperature": 0.0, "top_p": 0.1, "top_k": 2},
    "tool_choice auto": {"tools": _TOOLS, "tool_choice": "auto"},
    "logit_bias": {**_BIAS, "temperature": 2.0},
    "penalties": _PENALTIES,
    "stops": {"stop": ["zz"], "stop_token_ids": [77], "ignore_eos": True, "seed": 4},
}


@pytest.fixture(scope="module")
def model(engine) -> LlamaForCausalLM:
    """What the engine serves; peaked, so that top-p and its like leave few entries."""
    model = LlamaForCausalLM.from_pretrained(engine.model_dir, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    version = engine.next_version()
    path, probe = engine.weights.path(version), [[1, 50, 60, 70, 80, 90], [1, 110, 100, 17]]
    tensors = {name: t.contiguous().clone() for name, t in model.state_dict().items() if name != "lm_head.weight"}
    save_file(tensors, path)
    scores = [
        _logits(model, ids[:1], ids[1:]).log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
        for ids in probe
    ]
    publication = Publication(
        "tiny",
        version,
        str(path),
        file_checksum(path),
        len(tensors),
        "float32",
        Probe(tuple(map(tuple, probe)), tuple(map(tuple, scores))),
        Tolerance(1e-3, 1e-3),
    )
    report = engine.publish(publication)
    assert report.accepted, report.reason
    return model


@pytest.fixture
async def gateway(open_gateway, engine):
    async with open_gateway(policy="tiny") as opened:
        opened.endpoint.base_url, opened.endpoint.headers = engine.base_url, dict(engine.process.headers)
        yield opened


def _logits(model: LlamaForCausalLM, prompt: list[int], response: list[int]) -> torch.Tensor:
    """Of each sampled token, ``[L, V]``."""
    with torch.no_grad():
        return model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1].float()


def _log_q(model: LlamaForCausalLM, call: Call) -> Iterator[float]:
    prompt, response = list(call.prompt_ids), list(call.response_ids)
    shaping = call.shaping or Shaping()
    temperature = 1.0 if call.temperature <= 0 else max(call.temperature, 0.01)
    for place, row in enumerate(_logits(model, prompt, response)):
        for token, bias in shaping.logit_bias:
            row[token] += bias
        before = Counter(response[:place])
        for token in {*prompt, *before}:
            row[token] = (
                row[token] / shaping.repetition_penalty if row[token] > 0 else row[token] * shaping.repetition_penalty
            )
        for token, count in before.items():
            row[token] -= shaping.frequency_penalty * count + shaping.presence_penalty
        if call.support is not None and (pattern := call.support.pattern_L[place]) >= 0:
            left = torch.full_like(row, -torch.inf)
            entries = list(entries_of(call.support.patterns[pattern], call.support.vocabulary))
            left[entries] = row[entries]
            row = left
        yield float((row / temperature).log_softmax(-1)[response[place]])


async def _calls(gateway, asked: dict[str, Any], route: str = "/v1/chat/completions") -> list[Call]:
    answer = await gateway.http.post(route, json=asked, timeout=120)
    assert answer.status_code == 200, answer.text
    assert "lightning_support" not in answer.text
    assert "x-lightning-support" not in answer.headers
    span = await gateway.record()
    assert span.attributes[semconv.SUPPORT_KNOWN] is True
    reading = read_spans([span])
    assert reading.problems == ()
    for call in reading.calls:
        assert call.complete
        assert call.sampling_unknown is None
    return list(reading.calls)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", [*RESTRICTED, *FREE])
async def test_the_recorded_logprobs_are_of_what_the_record_says_was_drawn_from(gateway, model, name, stream) -> None:
    asked = RESTRICTED.get(name) or FREE[name]
    (call,) = await _calls(gateway, {**_CHAT, **asked, "stream": stream})
    assert call.behavior_logprobs == pytest.approx(list(_log_q(model, call)), abs=1e-3)
    assert (call.support is not None) == (name in RESTRICTED)
    assert (call.shaping is not None) == (name in ("everything", "logit_bias", "penalties"))
    if call.support is not None:
        assert min(call.support.sizes_L) < call.support.vocabulary


@pytest.mark.parametrize("stream", [False, True])
async def test_each_choice_has_its_own(gateway, model, stream: bool) -> None:
    calls = await _calls(gateway, {**_CHAT, "n": 3, "top_k": 5, "stream": stream})
    assert len(calls) == 3
    for call in calls:
        assert call.support is not None
        assert set(call.support.sizes_L) == {5}
        assert call.behavior_logprobs == pytest.approx(list(_log_q(model, call)), abs=1e-3)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("route", "asked"),
    [
        ("/v1/completions", {"prompt": "Is it open?", "max_tokens": 12, "top_k": 9}),
        (
            "/v1/responses",
            {"input": "Is it open?", "text": {"format": {"type": "json_schema", "name": "x", "schema": _SCHEMA}}},
        ),
        ("/v1/messages", {"messages": _MESSAGES[1:], "max_tokens": 12, "top_k": 9}),
    ],
)
async def test_every_api_has_it(gateway, model, route, asked, stream) -> None:
    (call,) = await _calls(gateway, {"model": "tiny", **asked, "max_output_tokens": 12, "stream": stream}, route)
    assert call.support is not None
    assert call.behavior_logprobs == pytest.approx(list(_log_q(model, call)), abs=1e-3)


async def test_requests_beside_each_other_keep_theirs_apart(gateway, model) -> None:
    asked = [RESTRICTED["top_k"], {"top_k": 3}, {}, RESTRICTED["regex"], RESTRICTED["json_schema"], {}]
    await asyncio.gather(*(gateway.post(**{**_CHAT, **one}) for one in asked))
    calls = read_spans(gateway.sink.spans).calls
    assert len(calls) == len(asked)
    for call in calls:
        assert call.sampling_unknown is None
        assert call.behavior_logprobs == pytest.approx(list(_log_q(model, call)), abs=1e-3)
    assert sum(call.support is None for call in calls) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_grammar_that_allows_nothing_ends_its_own_request_with_a_sentence(gateway, engine, stream) -> None:
    endless = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#"}}}
    answer = await gateway.http.post(
        "/v1/chat/completions", json={**_CHAT, "response_format": endless, "stream": stream}, timeout=120
    )
    assert answer.status_code == (200 if stream else 400)
    assert "allows no token here" in answer.text
    if not stream:
        assert json.loads(answer.text)["error"]["type"] == "BadRequestError"
    after = await gateway.http.post("/v1/chat/completions", json=_CHAT, timeout=120)
    assert after.status_code == 200
    assert engine.process.exited.done() is False


async def test_what_cannot_be_written_down_is_said(gateway) -> None:
    answer = await gateway.http.post("/v1/chat/completions", json={**_CHAT, "vllm_xargs": {"mine": 1}}, timeout=120)
    assert answer.status_code == 200, answer.text
    (call,) = read_spans([await gateway.record()]).calls
    assert call.sampling_unknown == "the request asked for vllm_xargs, which the trainer cannot compute"

"""What the engine says the tokens were drawn from is in the record and nowhere in the answer."""

import base64
import json

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.experts import RoutedExperts
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.sampling import Shaping, Support, support_of

VOCABULARY = 400


@pytest.fixture
def supports(gateway) -> list[Support]:
    """Of two choices of the stub's five tokens."""
    of = [support_of(VOCABULARY, [[token, 7 + token] for token in gateway.engine.tokens(index)]) for index in (0, 1)]
    gateway.engine.supports = {
        str(index): {"support": base64.b64encode(one.encode()).decode()} for index, one in enumerate(of)
    }
    return of


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("asked", [{}, {"return_token_ids": True, "logprobs": True, "top_logprobs": 0}])
async def test_it_is_recorded_by_choice_and_hidden(gateway, supports, stream, asked) -> None:
    answer = await gateway.post(stream=stream, n=2, top_k=2, **asked)
    assert answer.status_code == 200
    assert "lightning_support" not in answer.text
    assert "x-lightning-support" not in answer.headers
    if not stream:
        assert answer.json()["choices"]
    span = await gateway.record()
    assert span.attributes[semconv.SUPPORT_KNOWN] is True
    calls = read_spans([span]).calls
    assert [call.support for call in calls] == supports
    assert {call.sampling_unknown for call in calls} == {None}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/v1/responses", {"input": "Is it open?", "max_output_tokens": 9}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Is it open?"}], "max_tokens": 9}),
    ],
)
async def test_translated_answers_hide_it_too(gateway, supports, stream, route, body) -> None:
    del gateway.engine.supports["1"]
    answer = await gateway.http.post(route, json={"model": "sql", "stream": stream, "top_k": 2, **body})
    assert answer.status_code == 200, answer.text
    assert "lightning_support" not in answer.text
    (call,) = read_spans([await gateway.record()]).calls
    assert call.support == supports[0]


async def test_an_engine_that_says_nothing_leaves_it_unknown_where_the_request_restricts(gateway) -> None:
    await gateway.post(top_p=0.5, response_format={"type": "json_object"})
    span = await gateway.record()
    assert semconv.SUPPORT_KNOWN not in span.attributes
    (call,) = read_spans([span]).calls
    assert call.sampling_unknown is not None
    assert "(top_p = 0.5, structured output = json_object)" in call.sampling_unknown


async def test_what_the_engine_does_not_know_is_recorded_as_its_sentence(gateway) -> None:
    gateway.engine.supports = {"0": {"unknown": "more than 16 MiB"}}
    await gateway.post(top_p=0.99)
    (call,) = read_spans([await gateway.record()]).calls
    assert call.sampling_unknown == "more than 16 MiB"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_experts_that_a_choice_went_through_are_recorded_and_hidden(gateway, supports, stream) -> None:
    tokens = 3 + len(gateway.engine.tokens(1))
    experts = RoutedExperts(0, 2, 2, 1, bytes(range(4)) * (tokens - 1))
    gateway.engine.supports["1"] = {"routed_experts": base64.b64encode(experts.encode()).decode()}
    answer = await gateway.post(stream=stream, n=2, top_k=2)
    assert "experts" not in answer.text
    first, second = read_spans([await gateway.record()]).calls
    assert (first.support, first.routed_experts) == (supports[0], None)
    assert (second.support, second.routed_experts) == (None, experts)


async def test_a_cut_stream_has_none_and_is_incomplete(gateway, supports) -> None:
    gateway.engine.cut_after = 2
    await gateway.post(stream=True, top_k=2)
    (call,) = read_spans([await gateway.record()]).calls
    assert (call.complete, call.support, call.sampling_unknown) == (False, None, None)


async def test_every_sampling_parameter_is_on_the_span(gateway) -> None:
    schema = {"type": "object", "properties": {"secret": {"type": "string"}}}
    asked = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 30,
        "min_p": 0.05,
        "seed": 7,
        "n": 2,
        "stop": ["END", "STOP"],
        "presence_penalty": 0.25,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.1,
        "logit_bias": {"12": -100},
        "min_tokens": 4,
        "ignore_eos": True,
        "stop_token_ids": [2, 3],
        "allowed_token_ids": list(range(300)),
        "bad_words": ["hush"],
        "max_completion_tokens": 50,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "use_beam_search": True,
    }
    await gateway.post(**asked)
    span = await gateway.record()
    attributes = span.attributes
    expected = {
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 30,
        "gen_ai.request.seed": 7,
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.stop_sequences": ("END", "STOP"),
        "gen_ai.request.presence_penalty": 0.25,
        "gen_ai.request.frequency_penalty": -0.5,
        "gen_ai.request.max_tokens": 50,
        "gen_ai.output.type": "json",
        "lightning.request.min_p": 0.05,
        "lightning.request.repetition_penalty": 1.1,
        "lightning.request.logit_bias": '{"12":-100}',
        "lightning.request.min_tokens": 4,
        "lightning.request.ignore_eos": True,
        "lightning.request.stop_token_ids": (2, 3),
        "lightning.request.structured_output": "json_schema",
        "lightning.request.tool_choice": "named",
        "lightning.request.unknown": ("use_beam_search",),
    }
    assert {name: attributes.get(name) for name in expected} == expected
    assert str(attributes["lightning.request.allowed_token_ids"]).startswith("300 ids, sha256:")
    assert str(attributes["lightning.request.bad_words"]).startswith("1 words, sha256:")
    # Users' texts are not where redaction does not look.
    told = json.dumps({name: str(value) for name, value in attributes.items() if name.startswith("lightning.request")})
    assert "secret" not in told
    assert "hush" not in told
    assert read_spans([span]).calls[0].shaping == Shaping(((12, -100.0),), 0.25, -0.5, 1.1)

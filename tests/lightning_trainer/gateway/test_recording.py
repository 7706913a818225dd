"""Every answered call is recorded exactly, before its end goes out."""

import asyncio
import json

import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.spans.packing import unpack_logprobs, unpack_token_ids

from lightning_trainer.errors import StoreError
from lightning_trainer.gateway.caller import Caller
from lightning_trainer.gateway.calls.span import Sampler, record_of
from lightning_trainer.gateway.engine.transcript import Transcript
from lightning_trainer.gateway.request import engine_request
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.types import SpanStatus

_PARENT = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}


async def _read(gateway, stream: bool, **fields) -> str:
    answer = await gateway.post(stream=stream, **fields)
    assert answer.status_code == 200
    return answer.text


@pytest.mark.parametrize("stream", [False, True])
async def test_the_record_has_the_exact_tokens_and_the_version_that_sampled_them(gateway, stream: bool) -> None:
    gateway.engine.version = 7
    await _read(gateway, stream, temperature=0.5, max_tokens=9)
    span = await gateway.record()
    assert (span.name, span.scope, span.status) == ("gateway chat", "lightning.gateway", SpanStatus.OK)
    assert span.parent_span_id is None
    attributes = span.attributes
    assert unpack_token_ids(attributes[semconv.PROMPT_TOKEN_IDS]) == (11, 12, 13)
    assert unpack_token_ids(attributes[semconv.response_token_ids(0)]) == tuple(gateway.engine.tokens(0))
    assert unpack_logprobs(attributes[semconv.response_logprobs(0)]) == tuple(gateway.engine.logprobs(0))
    expected = {
        semconv.OPERATION: "chat",
        semconv.POLICY: "sql",
        semconv.POLICY_VERSION: 7,
        semconv.REQUEST_MODEL: "sql",
        semconv.RESPONSE_MODEL: "sql@v7",
        semconv.RESPONSE_ID: "chatcmpl-1",
        semconv.FINISH_REASONS: ("stop",),
        semconv.INPUT_TOKENS: 3,
        semconv.OUTPUT_TOKENS: 5,
        semconv.REQUEST_TEMPERATURE: 0.5,
        semconv.REQUEST_MAX_TOKENS: 9,
        semconv.STREAM_COMPLETE: True,
    }
    assert {name: attributes[name] for name in expected} == expected
    question = [{"role": "user", "parts": [{"type": "text", "content": "Is it open?"}]}]
    assert json.loads(attributes[semconv.INPUT_MESSAGES]) == question
    answer = {"role": "assistant", "parts": [{"type": "text", "content": "The café is open."}], "finish_reason": "stop"}
    assert json.loads(attributes[semconv.OUTPUT_MESSAGES]) == [answer]


@pytest.mark.parametrize("stream", [False, True])
async def test_every_choice_is_a_call_of_its_own(gateway, stream: bool) -> None:
    await _read(gateway, stream, n=2)
    calls = read_spans([await gateway.record()]).calls
    assert [call.response_ids for call in calls] == [tuple(gateway.engine.tokens(index)) for index in (0, 1)]
    assert [call.behavior_logprobs for call in calls] == [tuple(gateway.engine.logprobs(index)) for index in (0, 1)]
    assert {(call.prompt_ids, call.finish_reason, call.complete) for call in calls} == {((11, 12, 13), "stop", True)}


@pytest.mark.parametrize("stream", [False, True])
async def test_tool_calls_pass_through_and_are_recorded_whole(gateway, stream: bool) -> None:
    gateway.engine.tool_call = True
    tools = [{"type": "function", "function": {"name": "calculator", "parameters": {"type": "object"}}}]
    messages = [
        {"role": "system", "content": "Be brief."},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "42"},
    ]
    text = await _read(gateway, stream, tools=tools, messages=messages)
    assert "6*7" in text
    assert gateway.engine.requests[0]["tools"] == tools
    attributes = (await gateway.record()).attributes
    assert unpack_token_ids(attributes[semconv.response_token_ids(0)]) == tuple(gateway.engine.tokens(0))
    assert json.loads(attributes[semconv.TOOL_DEFINITIONS]) == tools
    assert json.loads(attributes[semconv.INPUT_MESSAGES]) == [
        {"role": "system", "parts": [{"type": "text", "content": "Be brief."}]},
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "f", "arguments": {}}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": "42"}]},
    ]
    called = {"type": "tool_call", "id": "call_1", "name": "calculator", "arguments": {"expression": "6*7"}}
    (message,) = json.loads(attributes[semconv.OUTPUT_MESSAGES])
    assert (message["parts"], message["finish_reason"]) == ([called], "tool_calls")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("road", ["header", "url", "both"])
async def test_a_caller_that_wants_no_texts_recorded_is_recorded_without(gateway, stream: bool, road: str) -> None:
    """Before: the gateway wrote every prompt and answer of a client with ``capture_content=False``."""
    gateway.engine.tool_call = True
    tools = [{"type": "function", "function": {"name": "secret_tool", "parameters": {"type": "object"}}}]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,secretimage"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "my secret"}, image]}]
    base = "/v1" if road == "header" else "/rollouts/r/with/capture_content=0/v1"
    answer = await gateway.http.post(
        f"{base}/chat/completions",
        json={"model": "sql", "messages": messages, "tools": tools, "stream": stream},
        headers={} if road == "url" else {"x-lightning-capture-content": "0"},
    )
    assert answer.status_code == 200
    assert "6*7" in answer.text
    assert gateway.engine.requests[0]["messages"] == messages
    span = await gateway.record()
    assert not semconv.CONTENT_KEYS & set(span.attributes)
    assert "secret" not in repr(span)
    assert "6*7" not in repr(span)
    (call,) = read_spans([span]).calls
    assert (call.prompt_ids, call.response_ids) == ((11, 12, 13), tuple(gateway.engine.tokens(0)))
    assert (call.behavior_logprobs, call.complete) == (tuple(gateway.engine.logprobs(0)), True)


async def test_words_of_an_engines_error_are_no_more_recorded_than_the_prompt(gateway) -> None:
    said = {"error": {"message": "cannot read 'my secret'"}}
    transcript = Transcript(1)
    transcript.add(said)
    asked = engine_request({"model": "sql", "messages": []}, version=None)
    for capture_content, message in ((True, "cannot read 'my secret'"), (False, "the engine reported an error")):
        caller = Caller("a" * 32, None, {}, capture_content)
        assert record_of(asked, caller, Sampler("sql", 1), transcript, start_ns=1).status_message == message


async def test_the_caller_is_known_by_traceparent_and_our_own_baggage(gateway) -> None:
    baggage = "lightning.rollout.id=r%2F1,lightning.attempt.id=a,gen_ai.agent.name=sql%20writer,user.email=secret"
    headers = {**_PARENT, "baggage": baggage, "authorization": "Bearer user-secret", "cookie": "user-secret"}
    await gateway.post(headers)
    span = await gateway.record()
    assert (span.trace_id, span.parent_span_id) == ("a" * 32, "b" * 16)
    identity = {k: v for k, v in span.attributes.items() if k in semconv.BAGGAGE_KEYS}
    assert identity == {
        "lightning.rollout.id": "r/1",
        "lightning.attempt.id": "a",
        "gen_ai.agent.name": "sql writer",
    }
    assert "secret" not in repr(span)
    forwarded = gateway.engine.headers_seen[0]
    assert forwarded["authorization"] == "Bearer engine-secret"
    assert not {"baggage", "traceparent", "cookie"} & set(forwarded)


async def test_our_clients_own_copies_count_where_another_instrumentation_has_replaced_the_standards_headers(
    gateway,
) -> None:
    ours = {
        "x-lightning-traceparent": f"00-{'c' * 32}-{'d' * 16}-01",
        "x-lightning-baggage": "lightning.rollout.id=r,gen_ai.agent.name=sql",
    }
    await gateway.post({**_PARENT, "baggage": "tenant=one,lightning.rollout.id=other,lightning.state=hall", **ours})
    span = await gateway.record()
    assert (span.trace_id, span.parent_span_id) == ("c" * 32, "d" * 16)
    assert (span.attributes[semconv.ROLLOUT_ID], span.attributes[semconv.AGENT_NAME]) == ("r", "sql")
    assert span.attributes[semconv.STATE] == "hall"
    assert not ours.keys() & set(gateway.engine.headers_seen[0])


async def test_the_state_that_baggage_names_is_the_calls(gateway) -> None:
    await gateway.post({**_PARENT, "baggage": "lightning.rollout.id=r,lightning.state=hall%2C%201"})
    span = await gateway.record()
    assert span.attributes[semconv.STATE] == "hall, 1"
    assert [call.state for call in read_spans([span]).calls] == ["hall, 1"]


@pytest.mark.parametrize(
    ("member", "rollout_id"),
    [
        # Before: "run 1", "2026-11-18T10:00:00 00:00" and "run-1;ttl=3", which no `/rollouts/{id}/end` names
        ("lightning.rollout.id=run+1", "run+1"),
        ("lightning.rollout.id=2026-11-18T10:00:00+00:00", "2026-11-18T10:00:00+00:00"),
        ("lightning.rollout.id=run-1;ttl=3", "run-1"),
        ("lightning.rollout.id = run-1 ; ttl = 3;hop", "run-1"),
        ("lightning.rollout.id=a=b%3Bc%2C%20d%25e%2B", "a=b;c, d%e+"),
    ],
)
async def test_a_member_of_baggage_is_read_as_w3c_has_it(gateway, member: str, rollout_id: str) -> None:
    await gateway.post({"baggage": f"tenant=one, {member} ,other=2"})
    assert (await gateway.record()).attributes[semconv.ROLLOUT_ID] == rollout_id


async def test_several_baggage_headers_are_one_list(gateway) -> None:
    # Before: only the first was read
    named = [("baggage", "tenant=one,lightning.attempt.id=a"), ("baggage", "lightning.rollout.id=r")]
    await gateway.http.post("/v1/chat/completions", json=gateway.body(), headers=named)
    attributes = (await gateway.record()).attributes
    assert (attributes[semconv.ROLLOUT_ID], attributes[semconv.ATTEMPT_ID]) == ("r", "a")


@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": "00-zz-11-01", "baggage": ";;;,=,lightning.rollout.id"},
        {"traceparent": f"00-{'0' * 32}-{'b' * 16}-01", "baggage": f"lightning.rollout.id={'x' * 5000}"},
        {"baggage": "lightning.rollout.id=" + "x" * 2000 + "," + "k=v," * 3000},
        {"x-lightning-traceparent": "00-zz-11-01", "x-lightning-baggage": "lightning.rollout.id=" + "x" * 2000},
    ],
)
async def test_malformed_or_oversized_context_is_ignored(gateway, headers) -> None:
    assert (await gateway.post(headers)).status_code == 200
    span = await gateway.record()
    assert span.parent_span_id is None
    assert len(span.trace_id) == 32
    assert not set(span.attributes) & set(semconv.BAGGAGE_KEYS)


async def test_a_response_goes_out_after_its_record_is_committed(gateway) -> None:
    gateway.sink.hold = asyncio.Event()
    answer = asyncio.create_task(gateway.post())
    await gateway.sink.asked.wait()
    await asyncio.sleep(0.05)
    assert not answer.done()
    gateway.sink.hold.set()
    assert (await answer).status_code == 200
    assert len(gateway.sink.spans) == 1


async def test_the_end_of_a_stream_goes_out_after_its_record_is_committed(gateway) -> None:
    async def read() -> None:
        async with gateway.http.stream("POST", "/v1/chat/completions", json=gateway.body(stream=True)) as answer:
            # Before: nginx in front of the daemon passed it on in one piece
            assert (answer.headers["x-accel-buffering"], answer.headers["cache-control"]) == ("no", "no-cache")
            async for piece in answer.aiter_bytes():
                received.extend(piece)

    gateway.sink.hold = asyncio.Event()
    received = bytearray()
    reading = asyncio.create_task(read())
    await gateway.sink.asked.wait()
    await asyncio.sleep(0.05)
    assert b" open" in received
    assert b"[DONE]" not in received
    assert b'"finish_reason":"stop"' not in received
    gateway.sink.hold.set()
    await reading
    assert received.endswith(b"data: [DONE]\n\n")
    assert len(gateway.sink.spans) == 1


async def test_a_call_that_cannot_be_recorded_is_not_answered(gateway) -> None:
    gateway.sink.error = StoreError("the disk is full")
    answer = await gateway.post()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json()["error"]["message"].endswith("its answer is withheld: the disk is full")
    stream = (await gateway.post(stream=True)).text
    assert "withheld" in stream
    assert "[DONE]" not in stream
    assert '"finish_reason":"stop"' not in stream


async def test_tokens_without_logprobs_are_recorded_without(gateway) -> None:
    gateway.engine.logprobs = lambda choice: [-0.5, None, -0.5, -0.5, -0.5]
    await gateway.post()
    (call,) = read_spans([await gateway.record()]).calls
    assert len(call.response_ids) == 5
    assert call.behavior_logprobs is None

"""Formats that only one provider speaks, over plain HTTP: what was asked and answered is on the span, as text."""

import json
from types import SimpleNamespace
from typing import Any

import httpx
import lightning_instrumentation as lt
import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.wire.native.bedrock import ConverseAnswer
from lightning_instrumentation.wire.native.fields import reason_of
from lightning_instrumentation.wire.native.gemini import GeminiAnswer

EVENTS, LINES, AMAZON = "text/event-stream", "application/x-ndjson", "application/vnd.amazon.eventstream"
SAID = {"role": "user", "parts": [{"type": "text", "content": "hello"}]}
SYSTEM = {"role": "system", "parts": [{"type": "text", "content": "be brief"}]}
CALL = {"type": "tool_call", "id": "t1", "name": "calc", "arguments": {"x": 2}}
TEXT = {"type": "text", "content": "a b"}


def amazon(*payloads: dict) -> bytes:
    """Messages without headers; nobody here looks at checksums."""
    texts = [json.dumps(payload).encode() for payload in payloads]
    return b"".join((16 + len(text)).to_bytes(4, "big") + bytes(8) + text + bytes(4) for text in texts)


def events(*payloads: dict) -> bytes:
    return b"".join(b"data: " + json.dumps(payload).encode() + b"\r\n\r\n" for payload in payloads)


def lines(*payloads: dict) -> bytes:
    return b"".join(json.dumps(payload).encode() + b"\n" for payload in payloads)


def gemini(parts: list, **more) -> dict:
    candidate = {"content": {"role": "model", "parts": parts}, **more}
    usage = {"promptTokenCount": 3, "candidatesTokenCount": 1, "thoughtsTokenCount": 1}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "g-001", "responseId": "r"}


GEMINI = {
    "systemInstruction": {"parts": [{"text": "be brief"}]},
    "contents": [{"role": "user", "parts": [{"text": "hello"}]}],
    "generationConfig": {"temperature": 0.5, "maxOutputTokens": 9},
    "tools": [{"functionDeclarations": [{"name": "calc"}]}],
}
OLLAMA: dict[str, Any] = {
    "model": "o",
    "messages": [{"role": "user", "content": "hello"}],
    "options": {"temperature": 0.5, "num_predict": 9},
}
OLLAMA_END = {"done": True, "done_reason": "stop", "prompt_eval_count": 3, "eval_count": 2, "model": "o"}
OLLAMA_CALL = {"id": "t1", "function": {"name": "calc", "arguments": {"x": 2}}}
COHERE: dict[str, Any] = {
    "model": "c",
    "messages": [{"role": "user", "content": "hello"}],
    "temperature": 0.5,
    "max_tokens": 9,
}
COHERE_END = {"finish_reason": "COMPLETE", "usage": {"tokens": {"input_tokens": 3, "output_tokens": 2}}}
CONVERSE = {
    "system": [{"text": "be brief"}],
    "messages": [{"role": "user", "content": [{"text": "hello"}]}],
    "inferenceConfig": {"temperature": 0.5, "maxTokens": 9},
    "toolConfig": {"tools": [{"toolSpec": {"name": "calc", "inputSchema": {"json": {"type": "object"}}}}]},
}
USAGE = {"inputTokens": 3, "outputTokens": 2}


def deltas(*words: str) -> list[dict]:
    start = {"type": "message-start", "id": "c-1", "delta": {"message": {"role": "assistant"}}}
    said = [{"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": w}}}} for w in words]
    return [start, *said]


WAYS = {
    "gemini": (
        "/v1beta/models/g:generateContent",
        GEMINI,
        "application/json",
        json.dumps(gemini([{"text": "hm", "thought": True}, {"text": "a b"}], finishReason="STOP")).encode(),
        ("gemini", "g", [SYSTEM, SAID], [{"type": "reasoning", "content": "hm"}, TEXT], "stop"),
    ),
    "gemini, a call of a tool": (
        "/v1/projects/p/publishers/google/models/g:generateContent",
        GEMINI,
        "application/json",
        json.dumps(
            gemini([{"functionCall": {"id": "t1", "name": "calc", "args": {"x": 2}}}], finishReason="STOP")
        ).encode(),
        ("gemini", "g", [SYSTEM, SAID], [CALL], "tool_calls"),
    ),
    "gemini, events": (
        "/v1beta/models/g:streamGenerateContent?alt=sse",
        GEMINI,
        EVENTS,
        events(gemini([{"text": "a "}]), gemini([{"text": "b"}], finishReason="STOP"), gemini([])),
        ("gemini", "g", [SYSTEM, SAID], [TEXT], "stop"),
    ),
    "gemini, one array": (
        "/v1beta/models/g:streamGenerateContent",
        GEMINI,
        "application/json",
        json.dumps([gemini([{"text": "a "}]), gemini([{"text": "b"}], finishReason="STOP")]).encode(),
        ("gemini", "g", [SYSTEM, SAID], [TEXT], "stop"),
    ),
    "ollama": (
        "/api/chat",
        {**OLLAMA, "stream": False},
        "application/json",
        json.dumps({"message": {"role": "assistant", "content": "a b"}, **OLLAMA_END}).encode(),
        ("ollama_chat", "o", [SAID], [TEXT], "stop"),
    ),
    "ollama, a call of a tool": (
        "/api/chat",
        {**OLLAMA, "stream": False},
        "application/json",
        json.dumps({"message": {"tool_calls": [OLLAMA_CALL]}, **OLLAMA_END}).encode(),
        ("ollama_chat", "o", [SAID], [CALL], "tool_calls"),
    ),
    "ollama, lines": (
        "/api/chat",
        OLLAMA,
        LINES,
        lines({"message": {"content": "a "}}, {"message": {"content": "b"}}, {"message": {}, **OLLAMA_END}),
        ("ollama_chat", "o", [SAID], [TEXT], "stop"),
    ),
    "ollama, a prompt": (
        "/api/generate",
        {"model": "o", "prompt": "hello", "system": "be brief", "options": OLLAMA["options"]},
        LINES,
        lines({"response": "a "}, {"response": "b"}, {"response": "", **OLLAMA_END}),
        ("ollama_generate", "o", [SYSTEM, SAID], [TEXT], "stop"),
    ),
    "cohere": (
        "/v2/chat",
        COHERE,
        "application/json",
        json.dumps({"id": "c-1", "message": {"content": [{"type": "text", "text": "a b"}]}, **COHERE_END}).encode(),
        ("cohere_chat", "c", [SAID], [TEXT], "stop"),
    ),
    "cohere, events": (
        "/v2/chat",
        {**COHERE, "stream": True},
        EVENTS,
        events(*deltas("a ", "b"), {"type": "message-end", "delta": COHERE_END}),
        ("cohere_chat", "c", [SAID], [TEXT], "stop"),
    ),
    "cohere, events of a tool": (
        "/v2/chat",
        {**COHERE, "stream": True},
        EVENTS,
        events(
            *deltas(),
            {
                "type": "tool-call-start",
                "index": 0,
                "delta": {"message": {"tool_calls": {"id": "t1", "function": {"name": "calc", "arguments": ""}}}},
            },
            {
                "type": "tool-call-delta",
                "index": 0,
                "delta": {"message": {"tool_calls": {"function": {"arguments": '{"x":2}'}}}},
            },
            {"type": "message-end", "delta": {**COHERE_END, "finish_reason": "TOOL_CALL"}},
        ),
        ("cohere_chat", "c", [SAID], [CALL], "tool_calls"),
    ),
    "converse": (
        "/model/us.a.b%3A0/converse",
        CONVERSE,
        "application/json",
        json.dumps(
            {
                "output": {"message": {"role": "assistant", "content": [{"text": "a b"}]}},
                "stopReason": "end_turn",
                "usage": USAGE,
            }
        ).encode(),
        ("bedrock_converse", "us.a.b:0", [SYSTEM, SAID], [TEXT], "stop"),
    ),
    "converse, events of a tool": (
        "/model/a/converse-stream",
        CONVERSE,
        AMAZON,
        amazon(
            {"role": "assistant"},
            {"start": {"toolUse": {"toolUseId": "t1", "name": "calc"}}, "contentBlockIndex": 1},
            {"delta": {"toolUse": {"input": '{"x":'}}, "contentBlockIndex": 1},
            {"delta": {"toolUse": {"input": "2}"}}, "contentBlockIndex": 1},
            {"stopReason": "tool_use"},
            {"usage": USAGE},
        ),
        ("bedrock_converse", "a", [SYSTEM, SAID], [CALL], "tool_calls"),
    ),
}  # fmt: skip


def test_an_answer_of_bedrock_that_the_context_ended_is_one_that_a_limit_ended():
    assert reason_of("model_context_window_exceeded") == reason_of("max_tokens") == "length"


def asked(path: str, body: dict, kind: str, answer: bytes, *, streamed: bool) -> bytes:
    def pieces():
        for at in range(0, len(answer), 7):
            yield answer[at : at + 7]

    def reply(request: httpx.Request) -> httpx.Response:
        content = pieces() if streamed else answer
        return httpx.Response(200, headers={"content-type": kind}, content=content)

    with httpx.Client(transport=httpx.MockTransport(reply)) as client:
        if not streamed:
            return client.post(f"https://provider.example{path}", json=body).content
        with client.stream("POST", f"https://provider.example{path}", json=body) as response:
            return b"".join(response.iter_bytes())


@pytest.mark.parametrize("streamed", [False, True], ids=["read whole", "read in pieces"])
@pytest.mark.parametrize("way", WAYS)
def test_what_was_asked_and_answered_is_recorded_and_handed_on_as_it_came(recording, way, streamed):
    path, body, kind, answer, (api, model, messages, parts, reason) = WAYS[way]
    before = lt.stats().failed
    assert asked(path, body, kind, answer, streamed=streamed) == answer
    (span,) = recording.spans()
    read = span.attributes
    assert (read[semconv.API], read[semconv.REQUEST_MODEL]) == (api, model)
    assert json.loads(read[semconv.INPUT_MESSAGES]) == messages
    (said,) = json.loads(read[semconv.OUTPUT_MESSAGES])
    assert (said["parts"], said["finish_reason"], read[semconv.FINISH_REASONS]) == (parts, reason, [reason])
    assert (read[semconv.INPUT_TOKENS], read[semconv.OUTPUT_TOKENS]) == (3, 2)
    assert (read[semconv.REQUEST_TEMPERATURE], read[semconv.REQUEST_MAX_TOKENS]) == (0.5, 9)
    if semconv.TOOL_DEFINITIONS in read:
        assert [tool["name"] for tool in json.loads(read[semconv.TOOL_DEFINITIONS])] == ["calc"]
    assert read.get(semconv.STREAM_COMPLETE, True) is True
    assert lt.stats().failed == before


def test_results_of_tools_are_messages_of_the_tool(recording):
    contents = [
        {"role": "model", "parts": [{"functionCall": {"name": "calc", "args": {"x": 2}}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "calc", "response": {"result": 4}}}]},
    ]
    asked("/v1beta/models/g:generateContent", {"contents": contents}, "application/json", b"{}", streamed=False)
    use = {"toolUse": {"toolUseId": "t1", "name": "calc", "input": {"x": 2}}}
    result = {"toolResult": {"toolUseId": "t1", "content": [{"text": "4"}]}}
    messages = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    asked("/model/a/converse", {"messages": messages}, "application/json", b"{}", streamed=False)
    gemini, bedrock = (json.loads(span.attributes[semconv.INPUT_MESSAGES]) for span in recording.spans())
    assert [message["role"] for message in gemini] == [message["role"] for message in bedrock] == ["assistant", "tool"]
    assert gemini[1]["parts"] == [{"type": "tool_call_response", "id": "calc", "response": {"result": 4}}]
    assert bedrock[1]["parts"] == [{"type": "tool_call_response", "id": "t1", "response": "4"}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", {"messages": [{"role": "user", "content": "hi"}]}),  # somebody's own server
        ("/api/generate", {"model": "o", "prompt": ""}),  # loads a model
        ("/orders/converse", {"messages": []}),
        ("/chain/invoke", {"input": "hi"}),
    ],
)
def test_what_only_looks_like_a_call_is_left_alone(recording, path, body):
    before = lt.stats().failed
    asked(path, body, "application/json", b"{}", streamed=False)
    assert recording.spans() == []
    assert lt.stats().failed == before


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/model/a/invoke", "bedrock-invoke"),
        ("/model/a/invoke-with-response-stream", "bedrock-invoke"),
        ("/v1/publishers/anthropic/models/c:streamRawPredict", "vertex-raw-predict"),
        ("/v1beta/interactions", "gemini-interactions"),
        ("/v1/responses/compact", "responses-compact"),
    ],
)
def test_what_is_not_read_is_counted_and_said(recording, path, reason):
    # Before: neither a span nor a count
    before = lt.stats().failed.get(f"not-captured:{reason}", 0)
    asked(path, {"anthropic_version": "x"}, "application/json", b"{}", streamed=False)
    assert recording.spans() == []
    assert lt.stats().failed[f"not-captured:{reason}"] == before + 1


def test_boto3_is_captured(recording, model):
    boto3 = pytest.importorskip("boto3", reason="the environment of the frameworks has it")
    client = boto3.client(
        "bedrock-runtime",
        region_name="us-east-1",
        endpoint_url=model.url,
        aws_access_key_id="a",
        aws_secret_access_key="b",
    )
    client.converse(modelId="a", messages=CONVERSE["messages"])
    assert recording.span("chat a").attributes[semconv.CAPTURED_BY] == "botocore"


def test_a_claimed_agents_call_by_boto3_is_counted_as_not_routed(begin, daemon, host):
    """Its requests are signed. A stand-in for what botocore sends; the hook is called as botocore calls it."""
    from lightning_instrumentation.clients import botocore

    daemon.select("prose", "writer")
    begin()
    body = json.dumps({"messages": CONVERSE["messages"]}).encode()
    request = SimpleNamespace(method="POST", url=f"{host.url}/model/a/converse", body=body, stream_output=False)
    response = SimpleNamespace(status_code=200, headers={"content-type": "application/json"}, content=b"{}")
    reason = "not-routed:/converse"
    before = lt.stats().failed.get(reason, 0)
    for name, counted in (("writer", 1), ("judge", 1)):
        with lt.agent(name):
            assert botocore._send(lambda request: response, None, (request,), {}) is response
        assert lt.stats().failed.get(reason, 0) == before + counted
    assert [span.attributes[semconv.AGENT_NAME] for span in daemon.chats()] == ["writer", "judge"]


PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PICTURE = {"type": "blob", "modality": "image", "mime_type": "image/png", "content": PNG}
PDF = {"type": "blob", "modality": "application", "mime_type": "application/pdf", "content": "JVBERi0="}
SEEN = {"type": "uri", "modality": "video", "uri": "s3://bucket/a.mp4"}
WHAT = {"type": "text", "content": "what?"}


def _of_bedrock(*content: dict) -> dict:
    return {"messages": [{"role": "user", "content": list(content)}]}


@pytest.mark.parametrize(
    ("path", "body", "messages"),
    [
        (
            "/api/chat",
            {"model": "o", "messages": [{"role": "user", "content": "what?", "images": [PNG]}]},
            [{"role": "user", "parts": [PICTURE, WHAT]}],
        ),
        (
            "/api/generate",
            {"model": "o", "prompt": "what?", "images": [PNG]},
            [{"role": "user", "parts": [PICTURE, WHAT]}],
        ),
        (
            "/model/a/converse",
            _of_bedrock(
                {"image": {"format": "png", "source": {"bytes": PNG}}},
                {"document": {"format": "pdf", "name": "a", "source": {"bytes": "JVBERi0="}}},
                {"video": {"format": "mp4", "source": {"s3Location": {"uri": "s3://bucket/a.mp4"}}}},
                {"text": "what?"},
            ),
            [{"role": "user", "parts": [PICTURE, PDF, SEEN, WHAT]}],
        ),
        (
            "/model/a/converse",
            _of_bedrock(
                {"toolResult": {"toolUseId": "t", "content": [{"image": {"format": "png", "source": {"bytes": PNG}}}]}}
            ),
            [{"role": "tool", "parts": [{"type": "tool_call_response", "id": "t", "response": [PICTURE]}]}],
        ),
        (
            "/v1/chat/completions",
            {
                "model": "o",
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}],
                    }
                ],
            },
            [
                {
                    "role": "user",
                    "parts": [{"type": "blob", "modality": "audio", "mime_type": "audio/wav", "content": "UklGRg=="}],
                }
            ],
        ),
    ],
    ids=["ollama", "ollama's generate", "bedrock", "bedrock's tools", "openai's sound"],
)
def test_what_is_sent_inside_a_request_is_a_part_of_its_message(recording, path, body, messages):
    asked(path, body, "application/json", b"{}", streamed=False)
    (span,) = recording.spans()
    assert json.loads(span.attributes[semconv.INPUT_MESSAGES]) == messages


def test_what_ollamas_model_thought_before_is_in_its_message(recording):
    thought = {"role": "assistant", "content": "4", "thinking": "2 and 2"}
    asked("/api/chat", {"model": "o", "messages": [thought]}, "application/json", b"{}", streamed=False)
    (message,) = json.loads(recording.spans()[0].attributes[semconv.INPUT_MESSAGES])
    assert message["parts"] == [{"type": "reasoning", "content": "2 and 2"}, {"type": "text", "content": "4"}]


@pytest.mark.parametrize(
    ("answer", "part", "counts"),
    [
        (
            ConverseAnswer(),
            {"usage": {"inputTokens": 3, "cacheReadInputTokens": 5000, "cacheWriteInputTokens": 7, "outputTokens": 5}},
            (5010, 5),
        ),
        (ConverseAnswer(), {"usage": {"inputTokens": 3, "outputTokens": 5}}, (3, 5)),
        (GeminiAnswer(), {"usageMetadata": {"promptTokenCount": 10, "thoughtsTokenCount": 1023}}, (10, 1023)),
        (GeminiAnswer(), {"usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 0}}, (10, 0)),
        (GeminiAnswer(), {"usageMetadata": {"promptTokenCount": 10}}, (10, None)),
    ],
)
def test_cached_tokens_and_thoughts_are_counted(answer, part, counts):
    """Before: cached tokens of a prompt were none, nor were the thoughts of an answer that ended within them."""
    answer.add(part)
    assert (answer.input_tokens, answer.output_tokens) == counts

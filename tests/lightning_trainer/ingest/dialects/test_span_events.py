"""What was said is read from a span's events, in each form that programs write, where the attributes have nothing."""

import json
from dataclasses import replace

import pytest

from lightning_trainer.agents.census import count_agents, slim
from lightning_trainer.ingest.dialects.dialect import Conversation
from lightning_trainer.ingest.dialects.registry import dialect_of
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.retokenize.chat import chat_answer, chat_messages
from lightning_trainer.retokenize.texts import words_of
from lightning_trainer.types import Span, SpanEvent, SpanStatus

DETAILS = "gen_ai.client.inference.operation.details"
CHAT = {"gen_ai.operation.name": "chat"}


def spanned(*events: tuple[str, dict], **attributes) -> Span:
    noted = tuple(SpanEvent(name, 1, body) for name, body in events)
    return Span("1" * 32, "2" * 16, None, "chat", 1, 2, CHAT | attributes, noted)


def said(span: Span) -> Conversation:
    return dialect_of(span).conversation(span)


def bodied(name: str, body: dict) -> tuple[str, dict]:
    return name, {"gen_ai.system": "az.ai.inference", "gen_ai.event.content": json.dumps(body)}


CALLED = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}}
TOOL_USE = {"toolUse": {"toolUseId": "c1", "name": "weather", "input": {"city": "Bonn"}}}
TOOL_RESULT = {"toolResult": {"toolUseId": "c1", "status": "success", "content": [{"text": "sunny"}]}}

FORMS = {
    "1.27": [
        (
            "gen_ai.content.prompt",
            {
                "gen_ai.prompt": json.dumps(
                    [
                        {"role": "user", "content": "weather?"},
                        {"role": "assistant", "content": None, "tool_calls": [CALLED]},
                        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
                    ]
                )
            },
        ),
        (
            "gen_ai.content.completion",
            {
                "gen_ai.completion": json.dumps(
                    [{"message": {"role": "assistant", "content": "It is"}, "finish_reason": "length"}]
                )
            },
        ),
    ],
    "strands": [
        ("gen_ai.user.message", {"content": json.dumps([{"text": "weather?"}])}),
        ("gen_ai.assistant.message", {"content": json.dumps([TOOL_USE])}),
        ("gen_ai.tool.message", {"content": json.dumps([TOOL_RESULT])}),
        ("gen_ai.choice", {"finish_reason": "max_tokens", "message": json.dumps([{"text": "It is"}])}),
    ],
    "attributes": [
        ("gen_ai.user.message", {"role": "user", "content": "weather?"}),
        ("gen_ai.assistant.message", {"role": "assistant", "tool_calls": json.dumps([CALLED])}),
        ("gen_ai.tool.message", {"id": "c1", "content": "sunny"}),
        ("gen_ai.choice", {"finish_reason": "length", "message": "It is", "index": 0}),
    ],
    "azure": [
        bodied("gen_ai.user.message", {"role": "user", "content": "weather?"}),
        bodied("gen_ai.assistant.message", {"role": "assistant", "tool_calls": [CALLED]}),
        bodied("gen_ai.tool.message", {"role": "tool", "id": "c1", "content": "sunny"}),
        bodied("gen_ai.choice", {"message": {"content": "It is"}, "finish_reason": "length", "index": 0}),
    ],
    "details": [
        (
            DETAILS,
            {
                "gen_ai.input.messages": json.dumps(
                    [
                        {"role": "user", "parts": [{"type": "text", "content": "weather?"}]},
                        {
                            "role": "assistant",
                            "parts": [
                                {"type": "tool_call", "id": "c1", "name": "weather", "arguments": {"city": "Bonn"}}
                            ],
                        },
                        {
                            "role": "user",
                            "parts": [{"type": "tool_call_response", "id": "c1", "response": [{"text": "sunny"}]}],
                        },
                    ]
                )
            },
        ),
        (
            DETAILS,
            {
                "gen_ai.output.messages": json.dumps(
                    [
                        {
                            "role": "assistant",
                            "parts": [{"type": "text", "content": "It is"}],
                            "finish_reason": "max_tokens",
                        }
                    ]
                )
            },
        ),
    ],
}


@pytest.mark.parametrize("form", FORMS)
def test_messages_and_finish_reasons_of_events_are_read(form) -> None:
    span = spanned(*FORMS[form])
    conversation = said(span)
    user, assistant, tool = chat_messages(conversation.input_messages)
    assert user == {"role": "user", "content": "weather?"}
    (call,) = assistant["tool_calls"]
    assert (call["id"], call["function"]) == ("c1", {"name": "weather", "arguments": {"city": "Bonn"}})
    assert tool == {"role": "tool", "tool_call_id": "c1", "content": "sunny"}
    assert chat_answer(conversation.output_messages[0]) == {"role": "assistant", "content": "It is"}
    (read,) = read_spans([span]).calls
    assert (read.truncated, read.complete) == (True, True)
    for seen in (span, slim(span)):
        assert [one.calls for one in count_agents([[seen]])] == [1]


def test_attributes_of_the_span_count_before_its_events() -> None:
    answer = [{"role": "assistant", "parts": [{"type": "text", "content": "5"}], "finish_reason": "stop"}]
    written = {"gen_ai.output.messages": json.dumps(answer)}
    span = spanned(*FORMS["strands"], **written)
    assert said(span).output_messages == tuple(answer)
    assert [message["role"] for message in said(span).input_messages] == ["user", "assistant", "tool"]
    assert [call.finish_reason for call in read_spans([span]).calls] == ["stop"]


def test_choices_are_in_the_order_of_their_indices_and_their_tools_are_counted() -> None:
    calling = {"message": {"role": "assistant", "tool_calls": [CALLED]}, "finish_reason": "tool_calls", "index": 0}
    other = {"message": {"content": '{"id": "t1"}'}, "finish_reason": "stop", "index": 1}
    span = spanned(bodied("gen_ai.choice", other), bodied("gen_ai.choice", calling))
    assert [call.finish_reason for call in read_spans([span]).calls] == ["tool_calls", "stop"]
    assert said(span).tools_called == ("weather",)
    assert said(span).output_messages[1]["parts"] == [{"type": "text", "content": '{"id": "t1"}'}]
    assert [one.tools for one in count_agents([[slim(span)]])] == [{"weather"}]


def test_blocks_that_are_not_words_are_kept_as_what_they_are() -> None:
    blocks = [
        {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "s"}}},
        {"image": {"format": "png", "source": {"bytes": "<replaced>"}}},
        {"toolResult": {"toolUseId": "c", "content": [{"json": {"celsius": 20}}]}},
        {"text": "and this"},
    ]
    span = spanned(("gen_ai.tool.message", {"content": json.dumps(blocks)}))
    (message,) = said(span).input_messages
    assert message["role"] == "user"
    assert [part["type"] for part in message["parts"]] == ["reasoning", "image", "tool_call_response", "text"]
    assert message["parts"][2]["response"] == {"celsius": 20}


def test_an_answer_that_is_json_of_the_models_own_stays_text() -> None:
    for text in ('{"id": "t1"}', '[{"city": "Bonn"}]', "[1]", "[", "5"):
        (answer,) = said(spanned(("gen_ai.choice", {"message": text}))).output_messages
        assert answer["parts"] == [{"type": "text", "content": text}]


@pytest.mark.parametrize("value", [7, True, "{", "[]", "[7]", "null", '[{"message": 7}]', '[{"toolUse": 7}]', (), b"x"])
def test_events_that_are_something_else_are_not_guessed_at(value) -> None:
    names = ("role", "content", "tool_calls", "message", "index", "finish_reason", "id", "gen_ai.event.content")
    odd = dict.fromkeys((*names, "gen_ai.prompt", "gen_ai.completion", "gen_ai.output.messages"), value)
    for name in ("gen_ai.user.message", "gen_ai.tool.message", "gen_ai.choice", "gen_ai.content.prompt", DETAILS):
        span = spanned((name, odd), ("gen_ai.content.completion", odd))
        said(span)
        read_spans([span, slim(span)])


def test_a_refused_request_whose_prompt_was_noted_is_no_call() -> None:
    span = spanned(*FORMS["details"][:1], *FORMS["strands"][:1])
    assert dialect_of(span).model_call(span) is None
    failed = Span("1" * 32, "2" * 16, None, "chat", 1, 2, CHAT, span.events, SpanStatus.ERROR)
    assert dialect_of(failed).failed(failed)


MARK = {"cachePoint": {"type": "default"}}


@pytest.mark.parametrize(
    "events",
    [
        (
            ("gen_ai.system.message", {"content": json.dumps([{"text": "Be brief."}, MARK])}),
            ("gen_ai.user.message", {"content": json.dumps([{"text": "2+3?"}])}),
            ("gen_ai.choice", {"finish_reason": "end_turn", "message": json.dumps([{"text": "5"}])}),
        ),
        (
            (
                DETAILS,
                {
                    "gen_ai.system_instructions": json.dumps(
                        [
                            {"type": "text", "content": "Be brief."},
                            {"type": "cachePoint", "content": {"type": "default"}},
                        ]
                    )
                },
            ),
            (
                DETAILS,
                {
                    "gen_ai.input.messages": json.dumps(
                        [{"role": "user", "parts": [{"type": "text", "content": "2+3?"}]}]
                    )
                },
            ),
            (
                DETAILS,
                {
                    "gen_ai.output.messages": json.dumps(
                        [{"role": "assistant", "parts": [{"type": "text", "content": "5"}]}]
                    )
                },
            ),
        ),
    ],
    ids=["1.36", "gen_ai_latest_experimental"],
)
def test_strands_system_prompt_is_read_with_its_mark_of_a_cache(events) -> None:
    """Before, such a call counted as one that has no words."""
    read = said(spanned(*events))
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+3?"}]
    assert chat_messages(read.input_messages) == asked
    assert [chat_answer(one)["content"] for one in read.output_messages] == ["5"]


@pytest.mark.parametrize("told", ["Be brief.", None])
def test_a_system_prompt_that_strands_has_on_the_agents_span_alone_is_each_calls(told) -> None:
    """As ``strands-agents`` before 1.34; such a call was a demonstration without its system prompt."""
    strands = {"gen_ai.system": "strands-agents"}
    prompted = {} if told is None else {"system_prompt": told}
    agent = Span("1" * 32, "a" * 16, None, "invoke_agent", 0, 9, {"gen_ai.operation.name": "invoke_agent"} | prompted)
    cycle = Span("1" * 32, "c" * 16, "a" * 16, "execute_event_loop_cycle", 0, 9, strands)
    call = replace(spanned(*FORMS["strands"], **{"gen_ai.system": "strands-agents"}), parent_span_id="c" * 16)
    (words,) = words_of([call, cycle, agent]).values()
    system = [] if told is None else [{"role": "system", "content": told}]
    assert chat_messages(words.prompt)[: len(system) + 1] == [*system, {"role": "user", "content": "weather?"}]

"""Calls of LangSmith's wrappers of other APIs than chat completions, as ``langsmith`` 0.14.17 exports their runs."""

import json

import pytest

from lightning_trainer.ingest.dialects.dialect import Conversation
from lightning_trainer.ingest.dialects.registry import dialect_of
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.retokenize.chat import chat_answer, chat_messages, chat_tools
from lightning_trainer.types import Call, Span

SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}
CALLED = {"type": "function", "function": {"name": "search", "arguments": {"q": "2+3"}}}
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+3?"}]
ANTHROPIC = {
    "model": "claude-x",
    "max_tokens": 9,
    "temperature": 0.5,
    "messages": [
        {
            "role": "system",
            "content": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        },
        {"role": "user", "content": "2+3?"},
    ],
    "tools": [{"name": "search", "description": "", "input_schema": SCHEMA}],
}
USED = [{"type": "text", "text": "Let me"}, {"type": "tool_use", "id": "t1", "name": "search", "input": {"q": "2+3"}}]
FOUND = [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "5"}]}]
ANSWERED = {"id": "msg_1", "model": "claude-x", "role": "assistant", "stop_sequence": None}
RESPONSES = {
    "model": "m",
    "instructions": "Be brief.",
    "input": [{"role": "user", "content": "2+3?"}],
    "temperature": 0.5,
    "tools": [{"type": "function", "name": "search", "description": "", "parameters": SCHEMA}],
}


def _run(inputs: dict, outputs: dict) -> tuple[Call, Conversation]:
    attributes = {
        "langsmith.span.kind": "llm",
        "gen_ai.operation.name": "chat",
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.prompt": json.dumps(inputs),
        "gen_ai.completion": json.dumps(outputs),
    }
    if reason := outputs.get("stop_reason"):
        attributes["gen_ai.response.finish_reasons"] = (reason,)
    span = Span("1" * 32, "2" * 16, None, "ChatAnthropic", 1, 2, attributes)
    (call,) = read_spans([span]).calls
    return call, dialect_of(span).conversation(span)


def test_a_call_of_anthropics_client_has_its_words_tools_and_temperature() -> None:
    answer = {
        "content": "Let me",
        "stop_reason": "tool_use",
        "tool_calls": [
            {
                "id": "t1",
                "type": "function",
                "index": 0,
                "function": {"name": "search", "arguments": '{"q":"2+3"}'},
            }
        ],
    }
    call, read = _run(ANTHROPIC, {**ANSWERED, **answer})
    assert (call.finish_reason, call.complete, call.temperature) == ("tool_use", True, 0.5)
    assert chat_messages(read.input_messages) == ASKED
    (said,) = read.output_messages
    assert chat_answer(said) == {"role": "assistant", "content": "Let me", "tool_calls": [{"id": "t1", **CALLED}]}
    assert chat_tools(read.tools) == [
        {"type": "function", "function": {"name": "search", "description": "", "parameters": SCHEMA}}
    ]


def test_its_next_turn_has_the_call_and_its_result() -> None:
    turns = [{"role": "assistant", "content": USED}, {"role": "user", "content": FOUND}]
    inputs = {**ANTHROPIC, "messages": [*ANTHROPIC["messages"], *turns]}
    content = [{"type": "thinking", "thinking": "easy", "signature": "s"}, {"type": "text", "text": "It is 5."}]
    _, read = _run(inputs, {**ANSWERED, "content": content, "stop_reason": "end_turn"})
    assert chat_messages(read.input_messages) == [
        *ASKED,
        {"role": "assistant", "content": "Let me", "tool_calls": [{"id": "t1", **CALLED}]},
        {"role": "tool", "tool_call_id": "t1", "content": "5"},
    ]
    (said,) = read.output_messages
    assert chat_answer(said) == {"role": "assistant", "content": "It is 5.", "reasoning_content": "easy"}


def test_a_call_of_the_responses_api_has_its_words_and_its_end() -> None:
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is"}]}
    cut = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    call, read = _run(RESPONSES, {"id": "resp_1", "object": "response", "output": [said], **cut})
    assert (call.finish_reason, call.truncated, call.temperature) == ("length", True, 0.5)
    assert chat_messages(read.input_messages) == ASKED
    assert [chat_answer(one) for one in read.output_messages] == [{"role": "assistant", "content": "It is"}]
    assert [tool["name"] for tool in read.tools] == ["search"]


@pytest.mark.parametrize("inputs", [{}, {"messages": 7}, {"messages": ["x", {"content": [3]}]}, {"input": [3]}])
@pytest.mark.parametrize(
    "outputs",
    [
        {"role": "assistant", "stop_reason": 7, "content": 7},
        {"role": "assistant", "stop_reason": None, "content": None, "tool_calls": 7},
        {"object": "response", "output": 7},
        {"object": "response", "output": [7, {"type": "message", "content": [None]}]},
    ],
)
def test_what_is_no_answer_of_theirs_is_not_guessed_at(inputs, outputs) -> None:
    call, read = _run(inputs, outputs)
    assert not call.truncated
    assert not any(message["parts"] for message in read.output_messages)

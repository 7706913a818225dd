"""Forms of spans that no recording here has, written as their instrumentations write them."""

import json
from dataclasses import replace

import pytest

from lightning_trainer.ingest.dialects.dialect import Conversation
from lightning_trainer.ingest.dialects.registry import dialect_of, with_response_id
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.judges.rendering import message_text
from lightning_trainer.retokenize.chat import chat_answer, chat_messages
from lightning_trainer.types import Span

OPENINFERENCE = {"openinference.span.kind": "LLM", "output.mime_type": "application/json"}
GENAI = {"gen_ai.operation.name": "chat", "gen_ai.response.id": "r"}


def spanned(attributes: dict, **more) -> Span:
    return Span("1" * 32, "2" * 16, None, "call", 1, 2, attributes, **more)


def answered(text: str, **more: str) -> dict:
    return {"role": "assistant", "parts": [{"type": "text", "content": text}], **more}


@pytest.mark.parametrize(
    ("attributes", "reasons"),
    [
        (OPENINFERENCE | {"output.value": '{"id": "msg_1", "type": "message", "stop_reason": "max_tokens"}'}, [True]),
        (
            OPENINFERENCE
            | {"output.value": '{"id": "msg_1", "type": "message", "stop_reason": "model_context_window_exceeded"}'},
            [True],
        ),
        (
            OPENINFERENCE
            | {
                "output.value": '{"id": "resp_1", "object": "response", "status": "incomplete", '
                '"incomplete_details": {"reason": "max_output_tokens"}}'
            },
            [True],
        ),
        (
            OPENINFERENCE
            | {
                "output.value": '{"generations": [[{"message": {"kwargs": '
                '{"response_metadata": {"id": "msg_1", "stop_reason": "max_tokens"}}}}]]}'
            },
            [True],
        ),
        (GENAI | {"gen_ai.output.messages": json.dumps([answered("a", finish_reason="length")])}, [True]),
        (
            GENAI
            | {
                "gen_ai.output.messages": json.dumps(
                    [answered("a", finish_reason="stop"), answered("b", finish_reason="length")]
                )
            },
            [False, True],
        ),
        (GENAI | {"gen_ai.response.finish_reasons": '["LENGTH"]'}, [True]),  # Spring AI: all its values are text
    ],
)
def test_an_answer_that_the_limit_ended_counts_as_truncated_wherever_the_span_says_so(attributes, reasons) -> None:
    assert [call.truncated for call in read_spans([spanned(attributes)]).calls] == reasons


@pytest.mark.parametrize(
    "value",
    [
        '{"object": "response", "incomplete_details": 7}',
        '{"object": "response", "incomplete_details": {"reason": []}}',
        '{"type": "message", "stop_reason": {}}',
        '{"generations": [[{"message": {"kwargs": {"response_metadata": {"stop_reason": 5}}}}]]}',
    ],
)
def test_a_reason_that_is_no_text_counts_as_missing(value) -> None:
    for span in (
        spanned(OPENINFERENCE | {"output.value": value}),
        spanned(GENAI | {"gen_ai.response.finish_reasons": value, "gen_ai.output.messages": f"[{value}]"}),
    ):
        call = dialect_of(span).model_call(span)
        assert call is not None
        assert call.finish_reasons == (None,)


@pytest.mark.parametrize("kind", ["text/plain", "application/json"])  # the latter of openinference-vercel
def test_an_answer_that_is_json_is_not_taken_for_the_response(kind) -> None:
    answer = '{"id": "ticket-12", "status": "open", "type": "bug", "object": 7}'
    span = spanned(OPENINFERENCE | {"output.value": answer, "output.mime_type": kind})
    call = dialect_of(span).model_call(span)
    assert call is not None
    assert (call.response_id, call.finish_reasons) == (None, (None,))


@pytest.mark.parametrize(
    "response",
    [
        '{"id": "r", "choices": []}',
        '{"id": "r", "object": "response"}',
        '{"id": "r", "type": "message"}',
        '{"llm_output": {"id": "r"}, "generations": []}',
    ],
)
def test_a_response_gives_its_id(response) -> None:
    span = spanned(OPENINFERENCE | {"output.value": response})
    assert with_response_id(span).attributes["gen_ai.response.id"] == "r"


def test_a_streamed_text_has_no_id_even_if_it_is_a_response() -> None:
    quoted = '{"id": "r", "object": "chat.completion", "choices": [{"finish_reason": "length"}]}'
    span = spanned(OPENINFERENCE | {"output.value": quoted, "output.mime_type": "text/plain"})
    assert with_response_id(span) is span
    assert not read_spans([span]).calls[0].truncated


AISDK = {
    "ai.operationId": "ai.generateText.doGenerate",
    "ai.telemetry.functionId": "support",
    "ai.response.id": "chatcmpl-9",
    "ai.response.finishReason": "stop",
}
CALLED = {"type": "tool-call", "toolCallId": "c1", "toolName": "weather", "input": {"city": "Bonn"}}
LOOKING = {"role": "assistant", "content": [{"type": "text", "text": "let me look"}, CALLED]}


def test_the_ai_sdks_own_attributes_count_beside_those_that_openinference_adds() -> None:
    """As ``@arizeai/openinference-vercel`` writes it: calls are numbered by their place among a message's parts."""
    added = {
        "openinference.span.kind": "LLM",
        "output.value": "sunny",
        "output.mime_type": "text/plain",
        "llm.input_messages.0.message.role": "assistant",
        "llm.input_messages.0.message.contents.0.message_content.text": "let me look",
        "llm.input_messages.0.message.tool_calls.1.tool_call.id": "c1",
        "llm.input_messages.0.message.tool_calls.1.tool_call.function.name": "weather",
    }
    span = spanned(AISDK | {"ai.response.text": "sunny", "ai.prompt.messages": json.dumps([LOOKING])} | added)
    (call,) = read_spans([span]).calls
    assert (call.agent, call.response_id, call.finish_reason) == ("support", "chatcmpl-9", "stop")
    said = dialect_of(span).conversation(span)
    assert said.input_messages[0]["parts"][1]["name"] == "weather"
    assert said.output_messages == ({"role": "assistant", "parts": [{"type": "text", "content": "sunny"}]},)
    # A span around the calls, which counts for nothing.
    around = spanned({"ai.operationId": "ai.generateText", "openinference.span.kind": "AGENT", "output.value": "sunny"})
    assert dialect_of(around).model_call(around) is None
    tool = spanned({"ai.operationId": "ai.toolCall", "ai.toolCall.name": "weather", "openinference.span.kind": "TOOL"})
    assert dialect_of(tool).tool(tool) == "weather"


def test_what_traceloop_moves_out_of_the_ai_sdks_attributes_is_read() -> None:
    """Its Node SDK removes the words under ``ai.*``, and writes them under the conventions' names."""
    asked = [{"role": "user", "parts": [{"type": "text", "content": "weather?"}]}]
    called = {"type": "tool_call", "tool_call": {"name": "weather", "arguments": '{"city": "Bonn"}'}}
    moved = {
        "gen_ai.input.messages": json.dumps(asked),
        "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": [called]}]),
        "llm.request.functions.0.name": "weather",
        "traceloop.workflow.name": "w",
    }
    span = spanned(AISDK | moved)
    (call,) = read_spans([span]).calls
    assert (call.agent, call.response_id) == ("support", "chatcmpl-9")
    said = dialect_of(span).conversation(span)
    assert said.input_messages == tuple(asked)
    assert said.tools_called == ("weather",)
    assert [tool["name"] for tool in said.tools] == ["weather"]
    assert chat_answer(said.output_messages[0])["tool_calls"] == [
        {"type": "function", "function": {"name": "weather", "arguments": {"city": "Bonn"}}}
    ]
    # A text beside the calls is in the numbered attributes alone.
    numbered = {
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": "let me look",
        "gen_ai.completion.0.tool_calls.0.name": "weather",
        "gen_ai.completion.0.tool_calls.0.arguments": '{"city": "Bonn"}',
    }
    (both,) = dialect_of(span).conversation(spanned(AISDK | moved | numbered)).output_messages
    assert [part.get("content", part.get("name")) for part in both["parts"]] == ["let me look", "weather"]


def moved_by_traceloop(*messages: dict) -> dict:
    parts = [[{"type": "text", "content": one["content"]}] for one in messages]
    listed = [{"role": one["role"], "parts": part} for one, part in zip(messages, parts, strict=True)]
    return AISDK | {"gen_ai.input.messages": json.dumps(listed), "gen_ai.completion.0.content": "sunny"}


def test_calls_and_results_that_traceloop_writes_as_text_are_read_and_lost_ones_leave_no_words() -> None:
    result = {"type": "tool-result", "toolCallId": "c1", "toolName": "weather", "output": {"value": "sunny"}}
    asked = {"role": "user", "content": '[{"type": "city"}]'}
    answered = {"role": "tool", "content": json.dumps([result])}
    whole = spanned(moved_by_traceloop(asked, {"role": "assistant", "content": json.dumps([CALLED])}, answered))
    user, call, tool = dialect_of(whole).conversation(whole).input_messages
    assert user["parts"] == [{"type": "text", "content": '[{"type": "city"}]'}]
    assert call["parts"] == [{"type": "tool_call", "id": "c1", "name": "weather", "arguments": {"city": "Bonn"}}]
    assert tool["parts"] == [{"type": "tool_call_response", "id": "c1", "response": "sunny"}]
    # With a text beside it, the call is gone, and so it is from the answer of version 5.
    torn = spanned(moved_by_traceloop(asked, {"role": "assistant", "content": "let me look"}, answered))
    assert dialect_of(torn).conversation(torn).input_messages == ()
    calling = spanned(moved_by_traceloop(asked) | {"ai.response.finishReason": "tool-calls"})
    assert dialect_of(calling).conversation(calling).output_messages == ()


def test_results_and_thoughts_in_pydantic_ais_words_are_those_of_the_conventions() -> None:
    asked = [
        {"role": "user", "parts": [{"type": "text", "content": "weather?"}]},
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", "name": "weather", "arguments": "{}"}]},
        {"role": "user", "parts": [{"type": "tool_call_response", "id": "c1", "name": "weather", "result": "sunny"}]},
    ]
    answer = {"role": "assistant", "parts": [{"type": "thinking", "content": "hm"}, {"type": "text", "content": "5"}]}
    written = {"gen_ai.input.messages": json.dumps(asked), "gen_ai.output.messages": json.dumps([answer])}
    said = dialect_of(span := spanned(GENAI | written)).conversation(span)
    assert chat_messages(said.input_messages)[2] == {"role": "tool", "tool_call_id": "c1", "content": "sunny"}
    assert chat_answer(said.output_messages[0]) == {"role": "assistant", "content": "5", "reasoning_content": "hm"}
    assert said.input_messages[2]["parts"] == [
        {"type": "tool_call_response", "id": "c1", "name": "weather", "response": "sunny"}
    ]
    assert message_text(said.input_messages[2]) == "(the tool answers) sunny"
    assert message_text(said.output_messages[0]) == "(thinking) hm\n5"


def test_a_response_that_is_there_is_not_replaced() -> None:
    part = {"type": "tool_call_response", "id": "c1", "response": "sunny", "result": "ok"}
    (message,) = Conversation(({"role": "tool", "parts": [part]},)).input_messages
    assert message["parts"] == [part]


@pytest.mark.parametrize(
    ("written", "response"),
    [
        ({"contents.0.message_content.type": "text", "contents.0.message_content.text": "sunny"}, "sunny"),
        ({"contents.0.message_content.text": "sun", "contents.1.message_content.text": "ny"}, "sunny"),
        ({"content": "rain", "contents.0.message_content.text": "sunny"}, "rain"),
        (
            {"contents.0.message_content.text": "a", "contents.1.message_content.image.image.url": "http://x"},
            [{"type": "text", "content": "a"}, {"type": "uri", "modality": "image", "uri": "http://x"}],
        ),
        ({}, ""),
    ],
)
def test_a_tools_result_in_parts_is_read_from_openinference(written, response) -> None:
    head = "llm.input_messages.0.message."
    message = {"role": "tool", "tool_call_id": "c1", **written}
    span = spanned(OPENINFERENCE | {"output.value": "{}"} | {head + name: value for name, value in message.items()})
    (read,) = dialect_of(span).conversation(span).input_messages
    assert read["parts"] == [{"type": "tool_call_response", "id": "c1", "response": response}]


@pytest.mark.parametrize("signs", [OPENINFERENCE, AISDK, {"llm.request.type": "chat"}, {"langsmith.span.kind": "llm"}])
def test_an_agent_named_by_the_conventions_attribute_is_known_in_any_dialect(signs) -> None:
    """What ``agents`` advises where our decorator cannot be used."""
    signs = {name: value for name, value in signs.items() if name != "ai.telemetry.functionId"}
    answer = {"gen_ai.response.id": "r", "output.value": "{}"}
    inner = Span("1" * 32, "2" * 16, "3" * 16, "call", 1, 2, signs | answer)
    outer = Span("1" * 32, "3" * 16, None, "run", 0, 3, {"gen_ai.agent.name": "solver"})
    named = replace(inner, attributes={**inner.attributes, "gen_ai.agent.name": "solver"})
    assert [call.agent for call in read_spans([named]).calls] == ["solver"]
    assert [call.agent for call in read_spans([inner, outer]).calls] == ["solver"]


@pytest.mark.parametrize(
    "place", ["research:df5b|model:5a8a", "research:df5b|1|model:02c8", "research:df5b|2|model:8d41"]
)
def test_the_node_that_calls_several_graphs_is_the_agent_of_all_their_calls(place) -> None:
    """LangGraph counts them in a call's place, from the second on; before, they were the agents ``1``, ``2`` ..."""
    metadata = {"langgraph_node": "model", "langgraph_checkpoint_ns": place}
    span = spanned(OPENINFERENCE | {"output.value": "{}", "metadata": json.dumps(metadata)})
    assert [call.agent for call in read_spans([span]).calls] == ["research"]


@pytest.mark.parametrize(
    "attributes",
    [
        GENAI | {"gen_ai.tool.definitions": '[{"name": "search", "input_schema": {"type": "object"}}]'},
        OPENINFERENCE
        | {
            "llm.tools.0.tool.json_schema": '{"name": "search", "input_schema": {"type": "object"}}',
            "output.value": "5",
        },
        {
            "llm.request.type": "chat",
            "llm.request.functions.0.name": "search",
            "llm.request.functions.0.input_schema": '{"type": "object"}',
        },
    ],
    ids=["ours and the conventions'", "OpenInference", "OpenLLMetry"],
)
def test_a_tool_of_anthropics_api_has_its_schema(attributes) -> None:
    """Before, datasets had the tool without its parameters."""
    span = Span("1" * 32, "2" * 16, None, "chat", 1, 2, attributes)
    (tool,) = dialect_of(span).conversation(span).tools
    assert (tool["name"], tool["parameters"]) == ("search", {"type": "object"})


def _litellm(role: str, said: str | None, **beside) -> dict:
    return {"role": role, "parts": [] if said is None else [{"type": "text", "content": said}], **beside}


@pytest.mark.parametrize("kind", ["completion", "acompletion"])
def test_a_call_of_litellm_is_read_with_what_it_writes_beside_the_parts(kind) -> None:
    """As ``integrations/opentelemetry.py`` writes it. Before, its proxy's calls were none, and tool calls were lost."""
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q": "2+3"}'}}
    asked = [
        _litellm("user", "2+3?"),
        _litellm("assistant", None, tool_calls=[call]),
        _litellm("tool", "5", tool_call_id="c1"),
    ]
    answer = _litellm("assistant", "Again", tool_calls=[call], finish_reason="tool_calls")
    attributes = {
        "gen_ai.operation.name": "chat" if kind == "completion" else kind,
        "llm.request.type": kind,
        "llm.is_streaming": "False",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.response.id": "r",
        "gen_ai.response.finish_reasons": '["tool_calls"]',
        "gen_ai.input.messages": json.dumps(asked),
        "gen_ai.output.messages": json.dumps([answer]),
    }
    span = spanned(attributes, scope="litellm")
    (found,) = read_spans([span]).calls
    assert (found.response_id, found.finish_reason, found.temperature) == ("r", "tool_calls", 0.5)
    said = dialect_of(span).conversation(span)
    called = [{"id": "c1", "type": "function", "function": {"name": "search", "arguments": {"q": "2+3"}}}]
    assert chat_messages(said.input_messages) == [
        {"role": "user", "content": "2+3?"},
        {"role": "assistant", "content": "", "tool_calls": called},
        {"role": "tool", "tool_call_id": "c1", "content": "5"},
    ]
    assert [chat_answer(one) for one in said.output_messages] == [
        {"role": "assistant", "content": "Again", "tool_calls": called}
    ]
    assert said.tools_called == ("search",)


THOUGHT = {"role": "assistant", "parts": [{"type": "reasoning", "content": "hm"}], "finish_reason": "stop"}
LOOKED_UP = {"type": "tool_call", "id": "c", "name": "look_up", "arguments": {"order": "A"}}
LOOKS_UP = {"role": "assistant", "parts": [LOOKED_UP], "finish_reason": "tool_call"}


@pytest.mark.parametrize(
    ("reasons", "messages", "answer"),
    [
        (["tool_calls"], [THOUGHT, LOOKS_UP], {"content": "", "reasoning_content": "hm"}),
        (
            ["stop", "tool_calls"],
            [{"role": "assistant", "parts": [*answered("I will look.")["parts"], LOOKED_UP]}],
            {"content": "I will look."},
        ),
        ([], [THOUGHT, answered("I will look."), LOOKS_UP], {"content": "I will look.", "reasoning_content": "hm"}),
    ],
)
@pytest.mark.parametrize("sign", [{"openai.api.type": "responses"}, {"gen_ai.response.id": "resp_1"}])
def test_a_response_of_several_items_is_one_answer_of_one_call(sign, reasons, messages, answer) -> None:
    """Before: a call for each reason, and thoughts instead of the answer.

    ``opentelemetry-instrumentation-genai-openai`` 1.3b0 writes the reasons of a response's items, each of them once.
    """
    written = {"gen_ai.response.finish_reasons": tuple(reasons), "gen_ai.output.messages": json.dumps(messages)}
    span = spanned(GENAI | written | sign)
    (call,) = read_spans([span]).calls
    assert call.finish_reason == (reasons[-1] if reasons else "tool_call")
    (said,) = dialect_of(span).conversation(span).output_messages
    called = {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": {"order": "A"}}}
    assert chat_answer(said) == {"role": "assistant", **answer, "tool_calls": [called]}


def test_choices_that_were_asked_for_stay_apart_whatever_the_id_looks_like() -> None:
    asked = {"gen_ai.response.id": "resp_1", "gen_ai.request.choice.count": 2}
    written = {"gen_ai.output.messages": json.dumps([answered("a"), answered("b")])}
    span = spanned(GENAI | asked | written | {"gen_ai.response.finish_reasons": ("stop", "stop")})
    assert len(read_spans([span]).calls) == len(dialect_of(span).conversation(span).output_messages) == 2

"""What OpenInference's instrumentations write for other APIs than chat completions, with what they leave out."""

import json
from typing import Any

import pytest

from lightning_trainer.ingest.dialects.dialect import Conversation
from lightning_trainer.ingest.dialects.registry import dialect_of
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.retokenize.chat import NoWordsError, chat_answer, chat_messages
from lightning_trainer.types import Span

ASKED = {"llm.input_messages.0.message.role": "user", "llm.input_messages.0.message.content": "Where are A and B?"}
ANSWER = "llm.output_messages.0.message."
LOOKING = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I will look."}]}
THOUGHTS = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}


def _said(attributes: dict[str, Any]) -> Conversation:
    signs = {"openinference.span.kind": "LLM", "output.mime_type": "application/json", "output.value": "{}"}
    span = Span("1" * 32, "2" * 16, None, "call", 1, 2, signs | attributes)
    assert len(read_spans([span]).calls) == 1
    return dialect_of(span).conversation(span)


def _item(order: str) -> dict[str, str]:
    return {"type": "function_call", "call_id": order, "name": "look_up", "arguments": json.dumps({"order": order})}


def _call(order: str) -> dict[str, Any]:
    return {"id": order, "type": "function", "function": {"name": "look_up", "arguments": {"order": order}}}


def _of_responses_api(*output: dict) -> dict[str, Any]:
    """As the instrumentation of the openai client writes a response: each item is an output message of its own."""
    written: dict[str, Any] = {"output.value": json.dumps({"id": "resp_1", "object": "response", "output": output})}
    for place, item in enumerate(output):
        head = f"llm.output_messages.{place}.message."
        written[f"{head}role"] = "assistant"
        match item["type"]:
            case "message":
                written[f"{head}contents.0.message_content.type"] = "text"
                written[f"{head}contents.0.message_content.text"] = item["content"][0]["text"]
            case "reasoning":
                written[f"{head}contents.0.message_content.type"] = "reasoning"
                if item["summary"]:
                    written[f"{head}contents.0.message_content.text"] = item["summary"][0]["text"]
            case _:
                written[f"{head}tool_calls.0.tool_call.id"] = item["call_id"]
                written[f"{head}tool_calls.0.tool_call.function.name"] = item["name"]
                written[f"{head}tool_calls.0.tool_call.function.arguments"] = item["arguments"]
    return written


@pytest.mark.parametrize(
    ("output", "answer"),
    [
        ([LOOKING, _item("A")], {"content": "I will look.", "tool_calls": [_call("A")]}),
        ([_item("A"), _item("B")], {"content": "", "tool_calls": [_call("A"), _call("B")]}),
        ([THOUGHTS, LOOKING], {"content": "I will look.", "reasoning_content": "hm"}),
        ([{"type": "reasoning", "summary": []}, _item("A")], {"content": "", "tool_calls": [_call("A")]}),
    ],
)
def test_the_items_of_a_response_are_one_answer(output, answer) -> None:
    """Before: its first item alone, so that a text had lost its tool calls."""
    (said,) = _said(ASKED | _of_responses_api(*output)).output_messages
    assert chat_answer(said) == {"role": "assistant", **answer}


def test_an_item_that_the_numbered_messages_lack_is_not_left_out() -> None:
    drawn = {"type": "code_interpreter_call", "id": "ci", "code": "1"}
    written = _of_responses_api(LOOKING) | {
        "output.value": json.dumps({"object": "response", "output": [LOOKING, drawn]})
    }
    (said,) = _said(ASKED | written).output_messages
    with pytest.raises(NoWordsError, match="code_interpreter_call"):
        chat_answer(said)


@pytest.mark.parametrize("output", [7, [7], [{"type": "message", "content": [None]}]])
def test_a_response_whose_items_cannot_be_read_has_its_numbered_messages(output) -> None:
    written = _of_responses_api(LOOKING) | {"output.value": json.dumps({"object": "response", "output": output})}
    (said,) = _said(ASKED | written).output_messages
    assert chat_answer(said) == {"role": "assistant", "content": "I will look."}


CONTENTS = "message.contents.1.message_content."


@pytest.mark.parametrize(
    "written",
    [
        {"llm.input_messages.2.message.role": "user", "llm.input_messages.2.message.content": "And C?"},
        {f"llm.input_messages.1.{CONTENTS}text": "What is it?", "llm.input_messages.1.message.role": "user"},
        {f"{ANSWER}role": "assistant", f"llm.output_messages.0.{CONTENTS}text": "I will look."},
        {f"{ANSWER}role": "assistant", f"{ANSWER}tool_calls.1.tool_call.function.name": "look_up"},
        {"llm.output_messages.1.message.role": "assistant", "llm.output_messages.1.message.content": "5"},
    ],
)
def test_what_is_numbered_with_a_gap_has_no_words(written) -> None:
    """Before: prompt and answer ended at the gap, where a tracer had left an item out and kept its number."""
    said = _said(ASKED | written)
    with pytest.raises(NoWordsError):
        chat_messages([*said.input_messages, *map(chat_answer, said.output_messages)])


def test_a_number_far_beyond_the_others_costs_nothing() -> None:
    said = _said({"llm.input_messages.99999.message.role": "user", **ASKED})
    assert len(said.input_messages) < 5
    with pytest.raises(NoWordsError):
        chat_messages(said.input_messages)


def test_the_input_of_a_response_is_numbered_from_1_also_without_instructions() -> None:
    """Before: such a call had no words."""
    asked = {name.replace(".0.", ".1."): value for name, value in ASKED.items()}
    system = {"llm.input_messages.0.message.role": "system", "llm.input_messages.0.message.content": "Be brief."}
    written = asked | _of_responses_api(LOOKING)
    roles = [[one["role"] for one in chat_messages(_said(more | written).input_messages)] for more in ({}, system)]
    assert roles == [["user"], ["system", "user"]]
    with pytest.raises(NoWordsError):  # of another API, whose first message is missing
        chat_messages(_said(asked).input_messages)


def _contents(head: str, *parts: dict[str, str]) -> dict[str, str]:
    return {f"{head}contents.{place}.{name}": value for place, part in enumerate(parts) for name, value in part.items()}


def _of_kind(kind: str, text: str) -> dict[str, str]:
    return {"message_content.type": kind, "message_content.text": text}


CALLED = {"tool_call.id": "t1", "tool_call.function.name": "look_up", "tool_call.function.arguments": '{"order": "A"}'}


def test_a_tool_call_that_is_also_among_the_contents_is_one_call() -> None:
    """As the instrumentation of Anthropic's client 3.1.0 writes it; before, no call of a tool had words."""
    among = _contents(ANSWER, _of_kind("text", "I will look."), {"message_content.type": "tool_use", **CALLED})
    calls = {f"{ANSWER}tool_calls.0.{name}": value for name, value in CALLED.items()}
    (said,) = _said(ASKED | {f"{ANSWER}role": "assistant"} | among | calls).output_messages
    called = {"id": "t1", "type": "function", "function": {"name": "look_up", "arguments": {"order": "A"}}}
    assert chat_answer(said) == {"role": "assistant", "content": "I will look.", "tool_calls": [called]}
    (lost,) = _said(ASKED | {f"{ANSWER}role": "assistant"} | among).output_messages
    with pytest.raises(NoWordsError, match="tool_use"):
        chat_answer(lost)


@pytest.mark.parametrize("kind", ["document", "web_search_tool_result", "fallback"])
def test_the_record_of_what_is_not_text_is_not_taken_for_words(kind) -> None:
    """Anthropic's other blocks have their JSON as text; before, a document became words of the user."""
    asked = {"llm.input_messages.0.message.role": "user"}
    given = _contents("llm.input_messages.0.message.", _of_kind(kind, '{"data": "<redacted>"}'), _of_kind("text", "?"))
    with pytest.raises(NoWordsError, match=kind):
        chat_messages(_said(asked | given).input_messages)


@pytest.mark.parametrize("kind", ["text", "input_text", "output_text"])
def test_text_is_read_under_each_of_its_names(kind) -> None:
    """The instrumentation for JavaScript writes those of the Responses API."""
    given = _contents("llm.input_messages.0.message.", _of_kind(kind, "Where?"))
    said = _said({"llm.input_messages.0.message.role": "user"} | given)
    assert chat_messages(said.input_messages) == [{"role": "user", "content": "Where?"}]


@pytest.mark.parametrize("kept", ["previous_response_id", "conversation", "prompt"])
def test_a_prompt_of_which_only_the_server_has_the_beginning_has_no_words(kept) -> None:
    """Before: its end was taken for all of it."""
    asked = ASKED | _of_responses_api(LOOKING)
    assert chat_messages(_said(asked).input_messages)
    with pytest.raises(NoWordsError):
        chat_messages(_said(asked | {"llm.invocation_parameters": json.dumps({kept: "resp_0"})}).input_messages)

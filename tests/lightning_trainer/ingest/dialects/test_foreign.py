"""Each dialect reads what the real packages of its family sent."""

import pytest

from lightning_trainer.ingest.dialects.openinference import DIALECT as OPENINFERENCE
from lightning_trainer.ingest.dialects.record import Conversation, Usage
from lightning_trainer.ingest.dialects.registry import dialect_of
from lightning_trainer.types import Span

WITH_CONTENT = ("genai", "openinference", "openllmetry", "openllmetry_numbered")
EVERY = pytest.mark.parametrize("name", [*WITH_CONTENT, "genai_without_content"])
WITH_WORDS = pytest.mark.parametrize("name", WITH_CONTENT)


@pytest.fixture
def spans(recorded, name) -> list[Span]:
    return recorded(name)


@pytest.fixture
def calls(spans) -> list[Span]:
    return [span for span in spans if dialect_of(span).model_call(span) is not None]


def said(span: Span) -> Conversation:
    return dialect_of(span).conversation(span)


@EVERY
def test_a_recording_is_read_in_the_dialect_of_its_packages(name, calls):
    dialects = {dialect_of(span).name for span in calls}
    assert dialects == {name.removesuffix("_without_content").removesuffix("_numbered")}


@EVERY
def test_model_name_response_id_counts_and_reasons_are_read(calls):
    first = dialect_of(span := calls[0]).model_call(span)
    assert first is not None
    assert first.response_id is not None
    assert first.response_id.startswith("chatcmpl-")
    assert (first.finish_reasons, first.complete) == (("stop",), True)
    assert dialect_of(span).usage(span) == Usage("m", 9, 5)


@EVERY
def test_several_choices_have_a_reason_each(calls):
    second = dialect_of(span := calls[1]).model_call(span)
    assert second is not None
    assert second.finish_reasons == ("stop", "stop")


@EVERY
def test_a_stream_that_was_left_is_not_called_complete(name, calls):
    left = dialect_of(span := calls[3]).model_call(span)
    assert left is not None
    # Neither of these two writes anything that shows how the stream ended: what is not known is not claimed.
    unknown = name in ("genai_without_content", "openllmetry_numbered")
    assert left.complete is (None if unknown else False)


@EVERY
def test_a_call_without_an_answer_is_a_failure_and_no_call(spans):
    failures = [span for span in spans if dialect_of(span).failed(span)]
    assert len(failures) == 1
    assert dialect_of(failures[0]).model_call(failures[0]) is None


@WITH_WORDS
def test_messages_come_as_roles_and_parts(calls):
    conversation = said(calls[0])
    asked = [(message["role"], message["parts"]) for message in conversation.input_messages]
    assert asked == [
        ("system", [{"type": "text", "content": "be brief"}]),
        ("user", [{"type": "text", "content": "raw"}]),
    ]
    assert [message["parts"] for message in conversation.output_messages] == [
        [{"type": "text", "content": "answer0 to raw "}]
    ]


@WITH_WORDS
def test_tools_offered_called_and_answered_are_read(name, calls):
    with_tools = [said(span) for span in calls if said(span).tools]
    first, *_, last = with_tools
    assert [tool["name"] for tool in first.tools] == ["calculator"]
    assert "expression" in first.tools[0]["parameters"]["properties"]
    assert first.tools_called == ("calculator",)
    (call,) = first.output_messages[0]["parts"]
    assert (call["id"], call["arguments"]) == ("call_1", {"expression": "2+3"})
    answers = [part for message in last.input_messages for part in message["parts"]]
    assert [(part["id"], part["response"]) for part in answers if part["type"] == "tool_call_response"] == [
        ("call_1", "5")
    ]


@WITH_WORDS
def test_the_agent_and_its_tools_are_named(name, spans):
    namings = {naming for span in spans if (naming := dialect_of(span).naming(span)) is not None}
    assert {naming.agent for naming in namings} == {"solver"}
    assert {naming.source for naming in namings} == {name.removesuffix("_numbered")}
    assert {tool for span in spans if (tool := dialect_of(span).tool(span))} == {"calculator"}


@pytest.mark.parametrize("value", ["{", "[]", "null", '"text"', '{"generations": [[null, 3], 4], "choices": "x"}'])
def test_an_output_that_is_something_else_is_not_guessed_at(value):
    attributes = {"openinference.span.kind": "LLM", "output.value": value, "llm.output_messages.x.y": 1}
    call = OPENINFERENCE.model_call(Span("1" * 32, "1" * 16, None, "llm", 1, 2, attributes))
    assert call is not None
    assert (call.response_id, call.finish_reasons, call.complete) == (None, (None,), None)


def test_strands_is_not_taken_for_openllmetry():
    """As ``strands-agents`` 1.x writes a model call: with a count of all tokens, as OpenLLMetry does."""
    counts = {"gen_ai.usage.input_tokens": 9, "gen_ai.usage.output_tokens": 5, "gen_ai.usage.total_tokens": 14}
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.system": "strands-agents", **counts}
    span = Span("1" * 32, "2" * 16, None, "chat", 1, 2, attributes, scope="strands.telemetry.tracer")
    assert dialect_of(span).name == "genai"
    assert dialect_of(span).usage(span) == Usage(None, 9, 5)

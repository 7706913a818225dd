"""Each dialect reads what the real packages of its family sent."""

from dataclasses import replace

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.agents.census import count_agents, slim
from lightning_trainer.ingest.dialects.dialect import Conversation, Usage
from lightning_trainer.ingest.dialects.openinference import DIALECT as OPENINFERENCE
from lightning_trainer.ingest.dialects.registry import dialect_of, with_response_id
from lightning_trainer.ingest.dialects.values import count, texts
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.types import Fidelity, Span

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


@pytest.fixture
def of_aisdk(recorded) -> list[Span]:
    """What ``ai`` sent through Node's exporter, in OTLP's JSON."""
    return recorded("aisdk")


def test_every_request_of_the_ai_sdk_is_a_call_and_what_is_around_it_is_none(of_aisdk) -> None:
    calls = read_spans(of_aisdk).calls
    assert [(call.agent, call.response_id, call.finish_reason, call.fidelity) for call in calls] == [
        ("solver", "chatcmpl-1", "stop", Fidelity.TEXT_ONLY),
        ("solver", "chatcmpl-2", "tool_calls", Fidelity.TEXT_ONLY),
        ("solver", "chatcmpl-3", "stop", Fidelity.TEXT_ONLY),
        ("solver", "chatcmpl-4", "stop", Fidelity.TEXT_ONLY),
        (None, "chatcmpl-5", "stop", Fidelity.TEXT_ONLY),
    ]
    assert all(call.complete for call in calls)
    assert calls[0].temperature == 0.5
    (solver, nobody) = count_agents([of_aisdk])
    assert (solver.calls, solver.prompt_tokens, solver.sampled_tokens, solver.failed) == (4, 36, 20, 2)
    assert (solver.tools, solver.sources) == ({"calculator"}, {"aisdk"})
    assert (nobody.agent, nobody.calls) == (None, 1)


def test_what_was_said_through_the_ai_sdk_is_read(of_aisdk) -> None:
    first, with_tools, last, *_, quiet = [said(span) for span in of_aisdk if dialect_of(span).model_call(span)]
    assert [(message["role"], message["parts"]) for message in first.input_messages] == [
        ("system", [{"type": "text", "content": "be brief"}]),
        ("user", [{"type": "text", "content": "raw"}]),
    ]
    assert first.output_messages == ({"role": "assistant", "parts": [{"type": "text", "content": "answer1"}]},)
    assert with_tools.tools_called == ("calculator",)
    (call,) = with_tools.output_messages[0]["parts"]
    assert (call["id"], call["arguments"]) == ("call_1", {"expression": "2+3"})
    assert "expression" in with_tools.tools[0]["parameters"]["properties"]
    assert last.input_messages[-1]["parts"] == [{"type": "tool_call_response", "id": "call_1", "response": "5"}]
    assert quiet == Conversation()


def test_a_text_that_was_cut_inside_an_emoji_loses_no_conversation(of_aisdk) -> None:
    """JavaScript's ``slice`` cuts between the halves, and its JSON writes the one that is left as an escape."""
    first = next(span for span in of_aisdk if dialect_of(span).model_call(span))
    prompt = str(first.attributes["ai.prompt.messages"]).replace('"raw"', r'"raw \ud83d"')
    cut = replace(first, attributes={**first.attributes, "ai.prompt.messages": prompt})
    assert said(cut).input_messages[-1]["parts"] == [{"type": "text", "content": "raw ?"}]


@pytest.mark.parametrize("name", ["agentops"])
def test_agent_lightnings_calls_are_exact_and_its_rewards_are_read(spans) -> None:
    reading = read_spans(spans)
    assert [(call.agent, call.response_id, call.finish_reason, call.fidelity) for call in reading.calls] == [
        ("solver", "chatcmpl-7", "stop", Fidelity.EXACT),
        ("solver", "chatcmpl-8", "tool_calls", Fidelity.EXACT),
        ("solver", "chatcmpl-9", "stop", Fidelity.EXACT),
        ("solver", "chatcmpl-10", "stop", Fidelity.TEXT_ONLY),  # AgentOps' stream wrapper sees no ids
    ]
    first = reading.calls[0]
    assert (list(first.prompt_ids), list(first.response_ids)) == ([1, 2, 3, 4], [7, 8, 9])
    assert list(first.behavior_logprobs or ()) == [-0.5, -0.25, -0.125]
    assert [(one.name, one.value, one.span_id) for one in reading.evaluations] == [
        ("reward", 0.75, None),
        ("reward", 0.5, None),
    ]
    assert reading.problems == ()


@pytest.mark.parametrize("name", ["agentops"])
def test_agent_lightnings_rollouts_are_those_of_its_calls_and_rewards(spans) -> None:
    # Before: in no rollout, so no reward met a call.
    place = {"agentlightning.rollout_id": "ro-4c68", "agentlightning.attempt_id": "at-308e"}
    reading = read_spans([replace(span, resource={**span.resource, **place}) for span in spans])
    assert {(one.rollout_id, one.attempt_id) for one in reading.calls} == {("ro-4c68", "at-308e")}
    assert {(one.rollout_id, one.attempt_id) for one in reading.evaluations} == {("ro-4c68", "at-308e")}
    ours = {semconv.ROLLOUT_ID: "ours", semconv.ATTEMPT_ID: "first"}
    inside = [replace(span, resource=place, attributes={**span.attributes, **ours}) for span in spans]
    assert {(one.rollout_id, one.attempt_id) for one in read_spans(inside).calls} == {("ours", "first")}
    strange = [replace(span, resource={"agentlightning.rollout_id": 7}) for span in spans]
    assert {one.rollout_id for one in read_spans(strange).calls} == {None}


@pytest.mark.parametrize("name", ["agentops"])
def test_agentops_is_counted_alike_from_a_slim_span(spans) -> None:
    for seen in (spans, [slim(span) for span in spans]):
        (solver,) = [one for one in count_agents([seen]) if one.calls]
        assert (solver.agent, solver.calls, solver.failed, solver.tools) == ("solver", 4, 1, {"calculator"})
        assert (solver.fidelity[Fidelity.EXACT], solver.fidelity[Fidelity.TEXT_ONLY]) == (3, 1)
        assert solver.sources == {"agentops"}


@pytest.mark.parametrize("name", ["agentops"])
def test_messages_and_tools_of_agentops_are_read(calls) -> None:
    first, with_tools, *_ = map(said, calls)
    assert first.input_messages[0] == {"role": "system", "parts": [{"type": "text", "content": "be brief"}]}
    assert first.output_messages[0]["parts"] == [{"type": "text", "content": "answer7"}]
    assert [tool["name"] for tool in with_tools.tools] == ["calculator"]


@pytest.mark.parametrize(
    ("prompt", "response", "problem"),
    [
        ((1, 2), (2**31,), "response_token_ids cannot be read as token ids"),
        (("a",), (1,), "prompt_token_ids cannot be read as token ids"),
        (5, (1,), "prompt_token_ids cannot be read as token ids (it is a int)"),
    ],
)
def test_foreign_ids_that_are_none_are_named_and_count_as_missing(prompt, response, problem) -> None:
    attributes = {"gen_ai.request.type": "chat", "gen_ai.response.id": "r", "prompt_token_ids": prompt}
    span = Span("1" * 32, "1" * 16, None, "chat", 1, 2, {**attributes, "response_token_ids": response})
    reading = read_spans([span])
    assert len(reading.calls) == 1
    assert problem in reading.problems[0]


def test_the_ids_of_agent_lightning_are_read_from_an_array_and_from_text_alike() -> None:
    attributes = {"gen_ai.request.type": "chat", "gen_ai.response.id": "r", "response_token_ids": "[7, 8]"}
    span = Span("1" * 32, "1" * 16, None, "chat", 1, 2, {**attributes, "prompt_token_ids": "[1]"})
    (call,) = read_spans([span]).calls
    assert (list(call.prompt_ids), list(call.response_ids)) == ([1], [7, 8])


@pytest.mark.parametrize("name", ["langsmith"])
def test_langsmiths_calls_are_read_with_ids_and_agents(spans) -> None:
    reading = read_spans(spans)
    assert [(call.agent, call.response_id, call.finish_reason, call.complete) for call in reading.calls] == [
        (None, "chatcmpl-1", "stop", True),
        (None, "chatcmpl-2", "stop", True),
        (None, "chatcmpl-2", "stop", True),
        (None, "chatcmpl-3", "stop", True),
        ("solver", "chatcmpl-4", "tool_calls", True),
        ("solver", "chatcmpl-5", "stop", True),
        (None, None, "stop", True),  # LangChain keeps no id of a stream
    ]
    assert {call.fidelity for call in reading.calls} == {Fidelity.TEXT_ONLY}
    assert reading.problems == ()
    for seen in (spans, [slim(span) for span in spans]):
        nobody, solver = sorted(count_agents([seen]), key=lambda one: one.agent or "")
        assert (nobody.agent, nobody.calls, nobody.failed) == (None, 4, 2)
        assert (solver.agent, solver.calls, solver.failed, solver.tools) == ("solver", 2, 0, {"calculator"})
        assert (solver.prompt_tokens, solver.sampled_tokens, solver.sources) == (18, 10, {"langsmith"})
    ids = {with_response_id(span).attributes.get(semconv.RESPONSE_ID) for span in spans}
    assert ids == {None, *(f"chatcmpl-{number}" for number in range(1, 6))}


@pytest.mark.parametrize("name", ["langsmith"])
def test_messages_and_tools_of_langsmith_are_read(calls) -> None:
    first, two, streamed, called, answered, last = map(said, calls)
    assert [(one["role"], one["parts"]) for one in first.input_messages] == [
        ("system", [{"type": "text", "content": "be brief"}]),
        ("user", [{"type": "text", "content": "raw"}]),
    ]
    for read, answers in ((two, ["answer2", "answer2.1"]), (streamed, ["answer3"]), (last, ["answer6"])):
        assert [one["parts"] for one in read.output_messages] == [[{"type": "text", "content": a}] for a in answers]
    assert last.input_messages == ({"role": "user", "parts": [{"type": "text", "content": "streamed"}]},)
    (call,) = called.output_messages[0]["parts"]
    assert (call["type"], call["id"], call["arguments"]) == ("tool_call", "call_4", {"expression": "2+3"})
    assert called.tools_called == ("calculator",)
    assert [tool["name"] for tool in called.tools] == ["calculator"]
    assert [one["role"] for one in answered.input_messages] == ["system", "user", "assistant", "tool"]
    assert answered.input_messages[2]["parts"] == [call]
    assert answered.input_messages[3]["parts"] == [{"type": "tool_call_response", "id": "call_4", "response": "5"}]


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ("{", "["),
        ('{"messages": 7}', '{"choices": [7, {"message": 1}], "generations": 7}'),
        ('{"messages": [[1, {"lc": 1, "kwargs": {"type": [], "content": 5, "tool_calls": "x"}}]]}', '{"choices": {}}'),
        ('{"messages": [{"role": [], "tool_calls": 7}]}', '{"generations": [[{"message": {"lc": 1, "kwargs": []}}]]}'),
        ("null", '{"generations": [{"text": 7, "generation_info": 7}]}'),
    ],
)
def test_a_run_of_langsmith_that_is_something_else_is_not_guessed_at(inputs, outputs) -> None:
    attributes = {"langsmith.span.kind": "llm", "gen_ai.usage.output_tokens": 1}
    attributes |= {"gen_ai.prompt": inputs, "gen_ai.completion": outputs}
    span = Span("1" * 32, "1" * 16, None, "llm", 1, 2, attributes)
    (call,) = read_spans([span]).calls
    assert (call.response_id, call.finish_reason) == (None, None)
    assert not any(message["parts"] for message in said(span).output_messages)


@pytest.mark.parametrize(
    "value", ["{", "[]", "null", '"text"', '{"generations": [[null, 3], 4], "choices": "x"}', '{"generations": 7}']
)
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


@pytest.mark.parametrize(("reason", "truncated"), [("STOP", False), ("LENGTH", True)])
def test_a_tracer_that_writes_text_alone_loses_nothing(reason: str, truncated: bool) -> None:
    """As Spring AI's observations write a model call by Micrometer; before, no counts, and a cut answer was whole."""
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.system": "openai",
        "gen_ai.response.finish_reasons": f'["{reason}"]',
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.usage.input_tokens": "9",
        "gen_ai.usage.output_tokens": "5",
        "gen_ai.usage.total_tokens": "14",
    }
    span = Span("1" * 32, "2" * 16, None, "chat m", 1, 2, attributes, scope="org.springframework.boot")
    assert dialect_of(span).usage(span) == Usage(None, 9, 5)
    (call,) = read_spans([span]).calls
    assert (call.finish_reason, call.truncated, call.complete) == (reason, truncated, True)


@pytest.mark.parametrize(
    ("written", "read"),
    [("9", 9), ("", None), ("-1", None), ("9.0", None), ("٣", None), ("9" * 19, None), (True, None), (" 9", None)],
)
def test_a_count_is_a_number_or_its_digits(written, read) -> None:
    assert count(Span("1" * 32, "2" * 16, None, "s", 1, 2, {"n": written}), "n") == read


@pytest.mark.parametrize(
    ("written", "read"),
    [('["a", "", null, 3]', ("a", None, None, None)), ("a", ()), ("[", ()), ("{}", ()), ("3", ()), ("[]", ())],
)
def test_an_array_of_texts_may_be_json(written, read) -> None:
    assert texts(Span("1" * 32, "2" * 16, None, "s", 1, 2, {"n": written}), "n") == read

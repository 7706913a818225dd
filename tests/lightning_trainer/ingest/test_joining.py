"""Whoever recorded a call and however often: it is one call, with the best of what was recorded."""

import random
from dataclasses import replace

import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.spans.packing import pack_logprobs, pack_token_ids

from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.types import Fidelity, Span

WITH_OURS = ("genai", "openinference", "openllmetry")
ALL = (*WITH_OURS, "genai_without_content", "openllmetry_numbered")
CHOICES = 7
"""Of 6 calls: one has two."""


def gateway_records(clients: list[Span]) -> list[Span]:
    """What the gateway would have recorded of our client's calls."""
    return [
        Span(
            trace_id=span.trace_id,
            span_id=f"{number:016x}",
            parent_span_id=span.span_id,
            name="gateway chat",
            start_ns=span.start_ns + 1,
            end_ns=span.end_ns - 1,
            attributes={
                semconv.OPERATION: semconv.CHAT,
                semconv.RESPONSE_ID: span.attributes[semconv.RESPONSE_ID],
                semconv.POLICY: "p",
                semconv.POLICY_VERSION: 1,
                semconv.PROMPT_TOKEN_IDS: pack_token_ids((1, 2)),
                semconv.CHOICES: 1,
                semconv.response_token_ids(0): pack_token_ids((number,)),
                semconv.response_logprobs(0): pack_logprobs((-0.5,)),
            },
            scope=semconv.GATEWAY_SCOPE,
        )
        for number, span in enumerate(clients, start=1)
        if semconv.RESPONSE_ID in span.attributes
    ]


@pytest.mark.parametrize("name", ALL)
def test_a_foreign_recording_gives_each_call_once_and_as_text(recorded, name):
    calls = read_spans(recorded(name)).calls
    assert len(calls) == CHOICES
    assert len({call.response_id for call in calls}) == 6
    assert {call.fidelity for call in calls} == {Fidelity.TEXT_ONLY}


@pytest.mark.parametrize("name", WITH_OURS)
def test_foreign_spans_beside_ours_add_no_call(recorded, name):
    foreign, ours = recorded(name), recorded(name, "ours")
    together = read_spans([*foreign, *ours]).calls
    assert together == read_spans(ours).calls
    assert len(together) == CHOICES
    assert [call.agent for call in together[-2:]] == ["solver", "solver"]


@pytest.mark.parametrize("name", WITH_OURS)
def test_three_layers_are_one_call_with_the_gateways_tokens(recorded, name):
    ours = recorded(name, "ours")
    gateway = gateway_records(ours)
    spans = [*recorded(name), *ours, *gateway]
    random.Random(0).shuffle(spans)
    calls = read_spans(spans).calls
    assert sorted(call.span_id for call in calls) == [span.span_id for span in gateway]
    assert {(call.fidelity, call.policy_version) for call in calls} == {(Fidelity.EXACT, 1)}


@pytest.mark.parametrize("name", WITH_OURS)
def test_the_agent_that_only_a_foreign_span_names_is_taken_over(recorded, name):
    ours = [
        replace(span, attributes={k: v for k, v in span.attributes.items() if k != semconv.AGENT_NAME})
        for span in recorded(name, "ours")
    ]
    assert [call.agent for call in read_spans(ours).calls[-2:]] == [None, None]
    calls = read_spans([*ours, *recorded(name)]).calls
    assert [call.agent for call in calls[-2:]] == ["solver", "solver"]


# -- without response ids ----------------------------------------------------------------------------------------------


def call_span(number: int, parent: int | None, start: int, end: int, scope: str, **attributes) -> Span:
    said = {
        semconv.OPERATION: semconv.CHAT,
        semconv.FINISH_REASONS: ("stop",),
        **{name.replace("__", "."): value for name, value in attributes.items()},
    }
    parent_id = None if parent is None else f"{parent:016x}"
    return Span("1" * 32, f"{number:016x}", parent_id, "chat", start, end, said, scope=scope)


def words(text: str) -> dict:
    return {"gen_ai__output__messages": f'[{{"role":"assistant","parts":[{{"type":"text","content":"{text}"}}]}}]'}


def ids(spans: list[Span]) -> list[int]:
    return [int(call.span_id, 16) for call in read_spans(spans).calls]


def test_a_span_around_others_is_of_the_last_try():
    spans = [
        call_span(1, None, 0, 100, "langchain"),
        call_span(2, 1, 10, 20, "openai", gen_ai__response__id="x"),
        call_span(3, 1, 30, 90, "openai", gen_ai__response__id="y"),
    ]
    assert ids(spans) == [2, 3]


def test_an_inner_span_without_an_id_lends_itself_the_outer_ones():
    spans = [
        call_span(1, None, 0, 100, "langchain", gen_ai__response__id="x"),
        call_span(2, 1, 10, 90, "openai"),
    ]
    (call,) = read_spans(spans).calls
    assert (int(call.span_id, 16), call.response_id) == (2, "x")


def test_siblings_of_two_instrumentations_are_one_call():
    spans = [
        Span("1" * 32, "9" * 16, None, "node", 0, 200, {}),
        call_span(1, 0x9999999999999999, 0, 100, "langchain"),
        call_span(2, 0x9999999999999999, 10, 90, "openai", gen_ai__response__id="x"),
        call_span(3, 0x9999999999999999, 110, 190, "openai", gen_ai__response__id="y"),
    ]
    assert ids(spans) == [2, 3]


def test_siblings_that_say_different_things_are_two_calls():
    spans = [
        call_span(1, 7, 0, 100, "langchain", **words("yes")),
        call_span(2, 7, 10, 90, "openai", gen_ai__response__id="x", **words("no")),
    ]
    assert ids(spans) == [1, 2]


def test_the_same_words_inside_of_the_same_time_are_one_call_across_traces():
    inner = replace(call_span(2, None, 10, 90, "openai", **words("yes")), trace_id="2" * 32)
    assert ids([call_span(1, None, 0, 100, "langchain", **words("yes")), inner]) == [2]
    later = replace(inner, start_ns=110, end_ns=190)
    assert ids([call_span(1, None, 0, 100, "langchain", **words("yes")), later]) == [1, 2]


def test_concurrent_calls_with_the_same_words_are_paired_one_to_one():
    outer = [call_span(n, 7, n, 100 + n, "langchain", **words("yes")) for n in (1, 2, 3)]
    inner = [call_span(10 + n, 7, 10 + n, 90 + n, "openai", gen_ai__response__id=f"{n}") for n in (1, 2, 3)]
    assert ids([*outer, *inner]) == [11, 12, 13]


def test_many_calls_without_ids_are_joined_in_a_line_of_time():
    spans = []
    for number in range(3000):
        start = 1000 * number
        spans.append(call_span(2 * number + 1, 0xF000, start, start + 900, "langchain"))
        spans.append(call_span(2 * number + 2, 0xF000, start + 10, start + 800, "openai"))
    assert len(read_spans(spans).calls) == 3000

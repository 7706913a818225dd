"""Every call of every agent is counted once, whoever recorded it, and what is missing is said."""

import tracemalloc
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.spans.packing import pack_token_ids

from lightning_trainer.agents.census import AgentCensus, count_agents, slim
from lightning_trainer.agents.report import agents_report
from lightning_trainer.types import Fidelity, Span, SpanStatus

WITH_OURS = ("genai", "openinference", "openllmetry")


def by_trace(spans: Iterable[Span]) -> list[list[Span]]:
    traces: dict[str, list[Span]] = {}
    for span in spans:
        traces.setdefault(span.trace_id, []).append(slim(span))
    return [traces[trace] for trace in sorted(traces)]


def census(*spans: Span) -> dict[str | None, AgentCensus]:
    return {one.agent: one for one in count_agents(by_trace(spans))}


def call(number: int, *, trace: int = 1, scope: str = semconv.CLIENT_SCOPE, **attributes: Any) -> Span:
    said = {semconv.OPERATION: semconv.CHAT, semconv.FINISH_REASONS: ("stop",), **attributes}
    return Span(f"{trace:032x}", f"{number:016x}", None, "chat", number, number + 1, said, scope=scope)


def tokens(prompt: int, *sampled: int) -> dict[str, Any]:
    return {
        semconv.PROMPT_TOKEN_IDS: pack_token_ids(range(prompt)),
        semconv.CHOICES: len(sampled),
        **{semconv.response_token_ids(i): pack_token_ids(range(n)) for i, n in enumerate(sampled)},
    }


@pytest.mark.parametrize("name", WITH_OURS)
def test_a_second_instrumentation_changes_no_count(recorded, name):
    # Before: 6 calls were counted as 12, or as 18 beside two others
    ours, both = census(*recorded(name, "ours")), census(*recorded(name, "ours"), *recorded(name))
    assert set(ours) == set(both) == {None, "solver"}
    for agent, one in ours.items():
        other = both[agent]
        assert (one.calls, one.fidelity, one.prompt_tokens, one.sampled_tokens, one.interrupted, one.failed) == (
            other.calls,
            other.fidelity,
            other.prompt_tokens,
            other.sampled_tokens,
            other.interrupted,
            other.failed,
        )
    solver, nobody = both["solver"], both[None]
    assert (solver.calls, solver.tools) == (2, {"calculator"})
    assert solver.sources == {"langchain"}
    assert (nobody.calls, nobody.interrupted, nobody.failed) == (4, 1, 1)


@pytest.mark.parametrize("name", WITH_OURS)
def test_an_agent_that_only_foreign_spans_tell_of_is_counted_as_text(recorded, name):
    solver = census(*recorded(name))["solver"]
    assert (solver.calls, solver.fidelity[Fidelity.TEXT_ONLY], solver.sources) == (2, 2, {name})
    assert (solver.prompt_tokens, solver.sampled_tokens) == (7 + 30, 5 + 5)


def test_streams_and_failures_that_logfire_records_too_are_counted_once(recorded):
    """Of a stream it writes two spans without an id, of a request that failed one: each lies in a trace of its own."""
    both = census(*recorded("logfire", "ours"), *recorded("logfire"))
    assert {agent: (one.calls, one.interrupted, one.failed) for agent, one in both.items()} == {
        "writer": (5, 1, 1),
        "async": (5, 0, 0),
    }
    alone = census(*recorded("logfire"))[None]
    assert (alone.calls, alone.failed) == (10, 1)


def made_in(outer: Span, one: Span) -> Span:
    return replace(one, attributes={**one.attributes, semconv.OUTER_SPAN: f"{outer.trace_id}-{outer.span_id}"})


def test_a_record_without_an_id_is_of_the_last_call_that_was_made_inside_of_it():
    framework = call(1, scope="strands")
    below = replace(call(2, scope="http"), attributes={}, parent_span_id=framework.span_id)
    named: dict[str, Any] = {semconv.AGENT_NAME: "a"}
    tries = [
        made_in(below, call(3, trace=2, **{**named, semconv.RESPONSE_ID: "x"})),
        made_in(below, call(4, trace=3, **{**named, semconv.RESPONSE_ID: "y"})),
    ]
    assert {agent: one.calls for agent, one in census(framework, below, *tries).items()} == {"a": 2}
    assert {agent: one.calls for agent, one in census(framework, below, call(5, trace=2)).items()} == {None: 2}


def test_a_call_of_ours_without_an_id_is_what_the_record_around_it_tells_of():
    named: dict[str, Any] = {semconv.RESPONSE_ID: "x", semconv.AGENT_NAME: "a"}
    framework = call(1, scope="strands", **named)
    assert {agent: one.calls for agent, one in census(framework, made_in(framework, call(2, trace=2))).items()} == {
        "a": 1
    }


def test_a_call_that_its_caller_cancelled_is_said_to_be_that(make_policy):
    named: dict[str, Any] = {semconv.AGENT_NAME: "solver"}
    client = replace(call(1, **named), attributes={**named, semconv.OPERATION: semconv.CHAT}, status=SpanStatus.ERROR)
    gone: dict[str, Any] = {semconv.POLICY: "p", semconv.STREAM_COMPLETE: False, **named}
    record = replace(call(2, scope=semconv.GATEWAY_SCOPE, **gone), parent_span_id=client.span_id)
    one = census(client, record)["solver"]
    assert (one.calls, one.cancelled, one.interrupted, one.failed, one.uncounted_calls) == (1, 1, 0, 0, 0)
    (row,) = agents_report([one], [], [make_policy(agents=("solver",))])["agents"]
    assert row["not_captured"] == ["1 call through the gateway cancelled by the caller before anything was answered"]


def test_calls_that_were_sent_to_the_gateway_are_not_said_to_have_gone_elsewhere(make_policy):
    # Before: "not made through the gateway", of calls that were
    routed: dict[str, Any] = {semconv.AGENT_NAME: "solver", semconv.ROUTE_POLICY: "p", semconv.OUTPUT_TOKENS: 1}
    routed[semconv.INPUT_TOKENS] = 1
    one = census(call(1, **routed), call(2, **{**routed, semconv.ROUTE_FELL_BACK: True}))["solver"]
    (row,) = agents_report([one], [], [make_policy(agents=("solver",))])["agents"]
    assert row["not_captured"] == [
        "1 call without token ids (the daemon was away, so another model answered)",
        "1 call without token ids (sent to the gateway, which ended before it could record them)",
    ]


def test_calls_of_a_claimed_agent_that_another_policy_answered_are_said(make_policy):
    def answered(number: int, policy: str) -> Span:
        of_agent: dict[str, Any] = {semconv.AGENT_NAME: "worker", semconv.POLICY: policy}
        return call(number, trace=number, scope=semconv.GATEWAY_SCOPE, **{**tokens(3, 2), **of_agent})

    counted = list(
        census(answered(1, "worker"), answered(2, "worker"), answered(3, "math"), answered(4, "gone")).values()
    )
    math, worker = make_policy(agents=("worker",)), make_policy(name="worker", agents=("critic",))
    (row,) = agents_report(counted, [], [math, worker])["agents"]
    assert (row["policy"], row["served_by"]) == ("math", ["gone", "math", "worker"])
    assert row["not_captured"] == [
        "2 calls answered by policy 'worker', so policy math does not train them: the program names 'worker' as its "
        "model (or that policy claimed the agent then); name 'math', or a model that is not a policy"
    ]


def test_a_trusted_host_that_gave_no_ids_is_not_said_to_be_none():
    # Before: "made to a server that is not the gateway and not a trusted host"
    said: dict[str, Any] = {semconv.AGENT_NAME: "solver", semconv.INPUT_TOKENS: 1, semconv.OUTPUT_TOKENS: 1}
    one = census(call(1, **{**said, semconv.NO_TOKEN_IDS: True}), call(2, **said))["solver"]
    (row,) = agents_report([one], [], [])["agents"]
    assert row["not_captured"] == [
        "1 call without token ids (made to a trusted host, whose answers had none: vLLM gives them, in OpenAI's "
        "formats)",
        "1 call without token ids (made to a server that is not the gateway and not a trusted host)",
    ]


def test_tokens_are_counted_from_the_ids_and_not_from_what_the_server_says():
    one = census(call(1, **{**tokens(300, 20, 30), semconv.AGENT_NAME: "a", semconv.INPUT_TOKENS: 5}))["a"]
    assert (one.calls, one.prompt_tokens, one.sampled_tokens) == (1, 300, 50)
    assert one.fidelity[Fidelity.EXACT] == 1


def test_a_gateway_record_that_ended_before_the_first_token_is_exact():
    cut = {semconv.PROMPT_TOKEN_IDS: pack_token_ids(range(9)), semconv.STREAM_COMPLETE: False}
    one = census(call(1, scope=semconv.GATEWAY_SCOPE, **{**cut, semconv.AGENT_NAME: "a"}))["a"]
    assert (one.fidelity[Fidelity.EXACT], one.prompt_tokens, one.sampled_tokens, one.interrupted) == (1, 9, 0, 1)


def test_records_of_one_response_in_two_traces_are_one_call_of_the_agent_that_either_names():
    gateway: dict[str, Any] = {**tokens(3, 2), semconv.RESPONSE_ID: "x", semconv.POLICY: "p"}
    client: dict[str, Any] = {semconv.RESPONSE_ID: "x", semconv.AGENT_NAME: "a", semconv.AGENT_SOURCE: "decorator"}
    counted = census(call(1, **client), call(2, trace=2, scope=semconv.GATEWAY_SCOPE, **gateway))
    assert set(counted) == {"a"}
    one = counted["a"]
    assert (one.calls, one.fidelity[Fidelity.EXACT], one.served_by, one.sources) == (1, 1, {"p": 1}, {"decorator"})


@pytest.mark.parametrize("trace", [1, 2])
def test_an_agent_is_known_by_how_the_client_recognized_it_though_the_gateway_repeats_its_name(trace):
    gateway: dict[str, Any] = {**tokens(3, 2), semconv.RESPONSE_ID: "x", semconv.AGENT_NAME: "a"}
    client: dict[str, Any] = {semconv.RESPONSE_ID: "x", semconv.AGENT_NAME: "a", semconv.AGENT_SOURCE: "langgraph"}
    record = call(2, trace=trace, scope=semconv.GATEWAY_SCOPE, **gateway)
    assert census(call(1, **client), record)["a"].sources == {"langgraph"}
    assert census(record)["a"].sources == {"gateway"}


def test_what_is_not_known_is_not_counted_as_zero():
    named: dict[str, Any] = {semconv.AGENT_NAME: "a"}
    one = census(call(1, **named))["a"]
    assert (one.calls, one.prompt_tokens, one.uncounted_calls) == (1, 0, 1)


def test_who_claims_an_agent_and_what_is_missing_is_said(make_policy):
    spans = [
        call(1, **{semconv.AGENT_NAME: "solver", semconv.STREAM_COMPLETE: False}),
        call(2, trace=2, **{semconv.AGENT_NAME: "judge"}),
        call(3, trace=3),
    ]
    report = agents_report(count_agents(by_trace(spans)), [], [make_policy()])
    assert [(row["agent"], row["policy"]) for row in report["agents"]] == [
        ("judge", None),
        ("solver", "math"),
        (None, None),
    ]
    solver, nobody = report["agents"][1]["not_captured"], report["agents"][2]["not_captured"]
    assert solver[0] == (
        "1 call without token ids (not made through the gateway, so policy math did not answer and cannot learn from "
        "them)"
    )
    assert solver[1] == "1 call cut short: the stream ended before its last chunk"
    assert nobody[0].startswith('1 call without an agent\'s name: only a policy with agents = ["*"] claims such calls')


@pytest.mark.long
def test_memory_does_not_grow_with_the_number_of_traces():
    def peak(traces: int) -> int:
        def stream():
            for number in range(1, traces + 1):
                attributes = {**tokens(200, 50), semconv.AGENT_NAME: "a", semconv.RESPONSE_ID: f"r{number}"}
                yield [slim(call(number, trace=number, **attributes))]

        tracemalloc.start()
        try:
            (one,) = count_agents(stream())
            assert one.calls == traces
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    # What is kept of a call is in SQLite's file, whose pages are not Python's memory; the rest is the same for both.
    assert peak(2000) < peak(400) + 100_000

"""Spans to calls: the gateway knows the tokens, the client knows who; neither order nor duplicates matter."""

import random
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lightning_instrumentation import semconv
from lightning_instrumentation.spans.packing import pack_logprobs, pack_token_ids

from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.types import AttemptState, Call, Evaluation, Fidelity, Span, SpanEvent, SpanStatus

_IDS = {semconv.ROLLOUT_ID: "r", semconv.ATTEMPT_ID: "a"}


def _span(number: int, parent: int | None = None, *, trace: int = 1, **fields) -> Span:
    defaults = {"name": "s", "start_ns": number, "end_ns": number + 1, "attributes": {}}
    parent_id = None if parent is None else f"{parent:016x}"
    return Span(f"{trace:032x}", f"{number:016x}", parent_id, **{**defaults, **fields})


def _tokens(*responses: tuple[int, ...], prompt: tuple[int, ...] = (1, 2), logprobs: bool = True) -> dict:
    attributes = {
        semconv.PROMPT_TOKEN_IDS: pack_token_ids(prompt),
        semconv.CHOICES: len(responses),
        semconv.FINISH_REASONS: ("stop",) * len(responses),
    }
    for index, ids in enumerate(responses):
        attributes[semconv.response_token_ids(index)] = pack_token_ids(ids)
        if logprobs:
            attributes[semconv.response_logprobs(index)] = pack_logprobs([-0.5] * len(ids))
    return attributes


def _gateway(number: int, parent: int | None = None, response: str | None = None, **fields) -> Span:
    attributes = {semconv.OPERATION: semconv.CHAT, semconv.POLICY: "p", semconv.POLICY_VERSION: 3}
    if response is not None:
        attributes[semconv.RESPONSE_ID] = response
    own = {"attributes": {**attributes, **_tokens((7, 8)), **fields.pop("attributes", {})}}
    return _span(number, parent, **{"name": "gateway chat", "scope": semconv.GATEWAY_SCOPE, **own, **fields})


def _client(number: int, parent: int | None = None, response: str | None = None, **fields) -> Span:
    attributes = {semconv.OPERATION: semconv.CHAT, **fields.pop("attributes", {})}
    if response is not None:
        attributes[semconv.RESPONSE_ID] = response
    return _span(
        number, parent, **{"name": "chat p", "scope": semconv.CLIENT_SCOPE, **fields, "attributes": attributes}
    )


def _root(number: int, **fields) -> Span:
    attributes = {**_IDS, semconv.ROLLOUT_ROOT: True, semconv.TASK_ID: "t", semconv.GROUP_ID: "g"}
    return _span(number, **{"name": "rollout", "attributes": attributes, **fields})


def _who(call: Call) -> tuple:
    return (call.agent, call.rollout_id, call.attempt_id)


def test_a_text_completion_of_the_client_with_exact_tokens_is_a_call() -> None:
    completion = {semconv.OPERATION: semconv.TEXT_COMPLETION, **_tokens((7, 8))}
    (call,) = read_spans([_client(9, response="x", attributes=completion)]).calls
    assert call.response_ids == (7, 8)


def test_a_gateway_span_is_a_call_with_its_exact_tokens() -> None:
    span = _gateway(9, response="x", attributes={**_IDS, semconv.AGENT_NAME: "solver"})
    (call,) = read_spans([span]).calls
    assert call == Call(
        call_id=f"{9:016x}/0",
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_span_id=None,
        response_id="x",
        agent="solver",
        rollout_id="r",
        attempt_id="a",
        policy="p",
        policy_version=3,
        prompt_ids=(1, 2),
        response_ids=(7, 8),
        behavior_logprobs=(-0.5, -0.5),
        finish_reason="stop",
        complete=True,
        start_ns=9,
        end_ns=10,
        fidelity=Fidelity.EXACT,
    )


def test_identity_comes_from_the_nearest_span_above_that_has_it() -> None:
    spans = [
        _root(1),
        _span(2, 1, attributes={**_IDS, semconv.AGENT_NAME: "outer"}),
        _span(3, 2, attributes={semconv.AGENT_NAME: "inner"}),
        _client(4, 3),
        _gateway(5, 4, "x"),
        _gateway(6, 4, "y", attributes={semconv.AGENT_NAME: "own"}),
    ]
    assert [_who(call) for call in read_spans(spans).calls] == [("inner", "r", "a"), ("own", "r", "a")]


def test_another_attempts_span_above_says_nothing() -> None:
    inner = {semconv.ROLLOUT_ID: "r2", semconv.ATTEMPT_ID: "a2"}
    spans = [_root(1), _span(2, 1, attributes={**_IDS, semconv.AGENT_NAME: "outer"}), _gateway(3, 2, attributes=inner)]
    (call,) = read_spans(spans).calls
    assert _who(call) == (None, "r2", "a2")


def test_a_gateway_span_without_trace_context_is_joined_on_the_response_id() -> None:
    client = _client(4, 1, "x", attributes={semconv.AGENT_NAME: "solver"})
    (call,) = read_spans([_root(1), client, _gateway(5, response="x", trace=2)]).calls
    assert _who(call) == ("solver", "r", "a")


def test_nobody_is_nobody() -> None:
    (call,) = read_spans([_gateway(5, parent=77)]).calls
    assert _who(call) == (None, None, None)


def test_several_choices_are_several_calls() -> None:
    calls = read_spans([_gateway(5, response="x", attributes=_tokens((7,), (8, 9), (10,)))]).calls
    assert [(call.call_id[-2:], call.response_ids) for call in calls] == [("/0", (7,)), ("/1", (8, 9)), ("/2", (10,))]
    assert {call.prompt_ids for call in calls} == {(1, 2)}


def test_a_client_span_with_tokens_is_a_call_where_the_gateway_saw_nothing() -> None:
    client = _client(4, response="x", attributes={**_IDS, **_tokens((5,))})
    call, other = read_spans([client, _client(6, response="y")]).calls
    assert (call.span_id, call.response_ids, call.policy_version) == (client.span_id, (5,), None)
    assert (call.fidelity, other.fidelity) == (Fidelity.EXACT, Fidelity.TEXT_ONLY)


@pytest.mark.parametrize("response", ["x", None])
def test_a_client_span_that_agrees_with_the_gateway_is_silent(response: str | None) -> None:
    reading = read_spans([_client(4, None, response, attributes=_tokens((7, 8))), _gateway(5, 4, response)])
    assert [call.span_id for call in reading.calls] == [f"{5:016x}"]
    assert reading.problems == ()


def test_where_client_and_gateway_differ_the_gateway_counts_and_it_is_said() -> None:
    reading = read_spans([_client(4, None, "x", attributes=_tokens((7, 9))), _gateway(5, 4, "x")])
    assert [call.response_ids for call in reading.calls] == [(7, 8)]
    assert reading.problems == (
        f"response x: the client's token ids (span {4:016x}) are not the gateway's (span {5:016x}); "
        "the gateway's count",
    )


def test_a_client_that_retried_made_two_calls() -> None:
    first = _gateway(5, 4, "x", attributes={semconv.STREAM_COMPLETE: False})
    reading = read_spans([_client(4, None, "y", attributes=_tokens((7, 8))), first, _gateway(6, 4, "y")])
    assert [(call.response_id, call.complete) for call in reading.calls] == [("x", False), ("y", True)]
    assert reading.problems == ()


def test_foreign_instrumentation_does_not_multiply_calls() -> None:
    foreign = [_client(n, None, "x", scope=f"openinference.{n}", attributes=_tokens((7, 8))) for n in (2, 3)]
    ours = _client(4, None, "x", attributes=_tokens((7, 8)))
    assert [call.span_id for call in read_spans([*foreign, ours]).calls] == [ours.span_id]


def test_two_records_of_the_gateway_are_two_calls_whatever_id_their_callers_chose() -> None:
    reading = read_spans([_gateway(5, response="x"), _gateway(6, response="x")])
    assert [call.span_id for call in reading.calls] == [f"{5:016x}", f"{6:016x}"]
    assert reading.problems == ()


def test_missing_tokens_are_empty_and_missing_logprobs_are_none() -> None:
    bare = _gateway(5, response="x", attributes={semconv.STREAM_COMPLETE: False})
    for name in (semconv.PROMPT_TOKEN_IDS, semconv.response_token_ids(0), semconv.response_logprobs(0)):
        del bare.attributes[name]  # type: ignore[attr-defined]
    reading = read_spans([bare])
    (call,) = reading.calls
    assert (call.prompt_ids, call.response_ids, call.behavior_logprobs, call.complete) == ((), (), None, False)
    assert call.fidelity is Fidelity.TEXT_ONLY
    assert reading.problems == ()


def test_bytes_that_are_no_ids_count_as_missing_and_it_is_said() -> None:
    broken = {semconv.response_token_ids(0): b"12345", semconv.response_logprobs(0): "text"}
    reading = read_spans([_gateway(5, attributes=broken)])
    assert reading.calls[0].response_ids == ()
    assert reading.calls[0].behavior_logprobs is None
    assert len(reading.problems) == 2
    assert "lightning.response.0.token_ids is 5 bytes, not packed" in reading.problems[1]


def test_numbers_are_read_as_the_text_that_the_client_found_them_in() -> None:
    packed, text = _gateway(5), _gateway(5)
    for name, said in {
        semconv.PROMPT_TOKEN_IDS: "[1, 2]",
        semconv.response_token_ids(0): "[3,4]",
        semconv.response_logprobs(0): "[-0.1,-2.5e-3]",
    }.items():
        text.attributes[name] = said  # type: ignore[index]
    packed.attributes.update(  # type: ignore[attr-defined]
        {
            semconv.PROMPT_TOKEN_IDS: pack_token_ids([1, 2]),
            semconv.response_token_ids(0): pack_token_ids([3, 4]),
            semconv.response_logprobs(0): pack_logprobs([-0.1, -2.5e-3]),
        }
    )
    assert read_spans([text]).calls == read_spans([packed]).calls
    assert read_spans([text]).calls[0].response_ids == (3, 4)


@pytest.mark.parametrize("text", ["", "[1", "[1.5]", '["1"]', "[[1]]", "{}", "1", "[99999999999]"])
def test_a_text_that_is_no_ids_counts_as_missing_and_it_is_said(text) -> None:
    reading = read_spans([_gateway(5, attributes={semconv.response_token_ids(0): text})])
    assert reading.calls[0].response_ids == ()
    assert "is a text and cannot be read" in reading.problems[0]


def test_a_root_span_is_an_attempt_that_ended() -> None:
    reading = read_spans([_root(1, status=SpanStatus.ERROR, status_message="no"), _span(2, attributes=_IDS)])
    (attempt,) = reading.attempts
    assert (attempt.attempt_id, attempt.state, attempt.error) == ("a", AttemptState.FAILED, "no")
    assert (attempt.task_id, attempt.group_id, attempt.started_ns, attempt.ended_ns) == ("t", "g", 1, 2)


def test_a_root_span_without_ids_and_a_second_root_are_said() -> None:
    reading = read_spans([_root(1), _root(2), _span(3, attributes={semconv.ROLLOUT_ROOT: True})])
    assert [attempt.started_ns for attempt in reading.attempts] == [1]
    assert len(reading.problems) == 2


def _scored(number: int, parent: int | None, name: str = "evaluate reward", **event) -> Span:
    attributes = {semconv.EVALUATION_NAME: "reward", **event}
    return _span(number, parent, name=name, events=(SpanEvent(semconv.EVALUATION_EVENT, 5, attributes),))


def test_an_evaluation_is_about_the_span_above_it_or_the_span_that_carries_it_or_the_whole_attempt() -> None:
    score = {semconv.EVALUATION_SCORE: 1, semconv.EVALUATION_EXPLANATION: "right"}
    assert read_spans([_root(1), _scored(2, 1, **score), _scored(3, 1, "chat", **score)]).evaluations == (
        Evaluation("reward", 1.0, "r", "a", None, 5, "right"),
        Evaluation("reward", 1.0, "r", "a", f"{3:016x}", 5, "right", trace_id=f"{1:032x}"),
    )


@pytest.mark.parametrize("score", [None, float("nan"), float("inf"), "7/10", True])
def test_a_score_that_is_no_number_is_missing(score) -> None:
    event = {} if score is None else {semconv.EVALUATION_SCORE: score}
    reading = read_spans([_scored(2, None, **event)])
    assert [evaluation.value for evaluation in reading.evaluations] == [None]
    assert len(reading.problems) == (score is not None)


def test_an_evaluation_without_a_name_is_said() -> None:
    reading = read_spans([_scored(2, None, **{semconv.EVALUATION_NAME: ""})])
    assert reading.evaluations == ()
    assert reading.problems == (f"span {2:016x}: an evaluation has no name and is left out",)


def test_a_circle_of_parents_ends() -> None:
    spans = [_span(1, 2), _span(2, 1, attributes={semconv.AGENT_NAME: "x"}), _gateway(3, 1), _gateway(4, 4)]
    assert len(read_spans(spans).calls) == 2


def test_a_very_deep_chain_is_read_in_linear_time() -> None:
    def function_calls(depth: int) -> int:
        spans = [_root(1), *(_span(n, n - 1) for n in range(2, depth)), _gateway(depth, depth - 1)]
        random.Random(0).shuffle(spans)
        events = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal events
            events += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            (call,) = read_spans(spans).calls
        finally:
            sys.setprofile(None)
        assert call.attempt_id == "a"
        return events

    # Work is counted and not timed, so a busy machine changes nothing.
    assert function_calls(8_000) < 2.2 * function_calls(4_000)


@st.composite
def _traces(draw) -> list[Span]:
    """Trees of client and gateway spans with identities, response ids and evaluations here and there."""
    spans = []
    size = draw(st.integers(1, 10))
    for number in range(1, size + 1):
        parent = draw(st.none() | st.integers(1, size))
        response = draw(st.none() | st.sampled_from(["x", "y"]))
        identity = draw(st.sampled_from([{}, _IDS, {semconv.AGENT_NAME: "one"}, {semconv.AGENT_NAME: "two"}]))
        start = draw(st.integers(0, 3))
        match draw(st.sampled_from(["span", "root", "gateway", "client", "tokens", "score"])):
            case "span":
                spans.append(_span(number, parent, attributes=identity, start_ns=start))
            case "root":
                spans.append(_root(number, start_ns=start))
            case "gateway":
                ids = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
                spans.append(
                    _gateway(number, parent, response, attributes={**identity, **_tokens(ids)}, start_ns=start)
                )
            case "client":
                spans.append(_client(number, parent, response, attributes=identity, start_ns=start))
            case "tokens":
                spans.append(_client(number, parent, response, attributes={**identity, **_tokens((1,), (2,))}))
            case "score":
                spans.append(_scored(number, parent, **{semconv.EVALUATION_SCORE: draw(st.floats())}))
    return spans


@pytest.mark.long
@settings(suppress_health_check=[HealthCheck.too_slow])  # which looks at the clock: another's work fails it
@given(_traces(), st.randoms(use_true_random=False))
def test_neither_order_nor_duplicates_change_the_reading(spans: list[Span], shuffler: random.Random) -> None:
    again = [*spans, *spans]
    shuffler.shuffle(again)
    assert repr(read_spans(again)) == repr(read_spans(spans))  # by repr: NaN is not equal to itself


@given(_traces())
def test_every_call_has_an_id_of_its_own_and_no_record_of_the_gateway_is_lost(spans: list[Span]) -> None:
    calls = read_spans(spans).calls
    assert len({call.call_id for call in calls}) == len(calls)
    recorded = {span.span_id for span in spans if span.scope == semconv.GATEWAY_SCOPE}
    assert recorded <= {call.span_id for call in calls}


def test_a_record_without_an_id_between_two_with_ids_does_not_make_them_one() -> None:
    spans = [_gateway(2, response="x"), _gateway(1, 2), _client(4, 1, response="y", attributes=_IDS)]
    assert {call.response_id for call in read_spans(spans).calls} == {"x", "y"}


@given(_traces())
def test_every_response_that_was_recorded_gives_a_call(spans: list[Span]) -> None:
    recorded = {span.attributes.get(semconv.RESPONSE_ID) for span in spans if semconv.RESPONSE_ID in span.attributes}
    assert recorded - {None} == {call.response_id for call in read_spans(spans).calls} - {None}

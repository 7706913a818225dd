"""A response id does not say by itself which call a record is of: servers repeat theirs, and callers choose theirs."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lightning_instrumentation import semconv
from lightning_instrumentation.spans.packing import pack_logprobs, pack_token_ids

from lightning_trainer.agents.census import AgentCensus, count_agents, slim
from lightning_trainer.config import PolicyConfig
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.retokenize.texts import words_of
from lightning_trainer.samples.batches import build_batch
from lightning_trainer.samples.rewards.reward_table import read_rewards
from lightning_trainer.types import Attempt, AttemptState, Evaluation, Span, SpanEvent

_MS = 1_000_000
POLICY = PolicyConfig.model_validate({"name": "p", "agents": ("*",), "model": "random:tiny"})


@dataclass(frozen=True)
class Layers:
    """Who tells of a call; each but the last in a trace of its own where ``apart``."""

    foreign: bool = False
    client: bool = True
    gateway: bool = True
    tokens: bool = True
    """Whether the client has the tokens too."""
    apart: bool = False


def recorded(number: int, response: str, layers: Layers, *, attempt: str, agent: str, start_ns: int) -> list[Span]:
    """One call, as each layer records it; its tokens are its number."""
    own = {semconv.ROLLOUT_ID: f"r-{attempt}", semconv.ATTEMPT_ID: attempt, semconv.AGENT_NAME: agent}
    said = {semconv.OPERATION: semconv.CHAT, semconv.RESPONSE_ID: response, semconv.FINISH_REASONS: ("stop",)}
    tokens = {
        semconv.PROMPT_TOKEN_IDS: pack_token_ids((1, number)),
        semconv.CHOICES: 1,
        semconv.response_token_ids(0): pack_token_ids((number, 2)),
        semconv.response_logprobs(0): pack_logprobs((-0.5, -0.5)),
    }
    trace, end_ns = f"{7 * number + 1:032x}", start_ns + 50 * _MS
    spans = []
    if layers.foreign:
        spans.append(
            Span(trace, f"{3 * number + 1:016x}", None, "llm", start_ns, end_ns, said, scope="openinference.x")
        )
    if layers.client:
        above = None if layers.apart or not spans else spans[-1].span_id
        attributes = {**own, **said, **(tokens if layers.tokens else {})}
        where = f"{7 * number + 2:032x}" if layers.apart else trace
        spans.append(
            Span(
                where,
                f"{3 * number + 2:016x}",
                above,
                "chat",
                start_ns + _MS,
                end_ns - _MS,
                attributes,
                scope=semconv.CLIENT_SCOPE,
            )
        )
    if layers.gateway:
        above = None if layers.apart or not spans else spans[-1].span_id
        attributes = {**own, **said, **tokens, semconv.POLICY: "p", semconv.POLICY_VERSION: 0}
        where = f"{7 * number + 3:032x}" if layers.apart else trace
        spans.append(
            Span(
                where,
                f"{3 * number + 3:016x}",
                above,
                "gateway chat",
                start_ns + 2 * _MS,
                end_ns - 2 * _MS,
                attributes,
                scope=semconv.GATEWAY_SCOPE,
            )
        )
    return spans


def census(spans: Sequence[Span]) -> list[AgentCensus]:
    traces: dict[str, list[Span]] = {}
    for span in spans:
        traces.setdefault(span.trace_id, []).append(slim(span))
    return count_agents(traces[trace] for trace in sorted(traces))


def ledger_of(spans: Sequence[Span]) -> tuple[int, int]:
    """Calls and tokens in the ledger of a step that is made of all attempts."""
    reading = read_spans(spans)
    ids = sorted({call.attempt_id for call in reading.calls if call.attempt_id is not None})
    attempts = [Attempt(one, f"r-{one}", "t", "g", state=AttemptState.SUCCEEDED, ended_ns=10**12) for one in ids]
    rows = build_batch(reading.calls, attempts, reading.evaluations, POLICY, 1).ledger
    return sum(row.calls for row in rows), sum(row.tokens for row in rows)


@pytest.mark.parametrize(
    "layers",
    [
        Layers(gateway=False, tokens=False),
        Layers(foreign=True, gateway=False, tokens=False),
        Layers(foreign=True, gateway=False, tokens=False, apart=True),
        Layers(client=False),
        Layers(),
        Layers(tokens=False),
        Layers(foreign=True),
        Layers(foreign=True, apart=True),
        Layers(apart=True),
    ],
    ids=str,
)
@pytest.mark.parametrize("gap_ms", [10, 60, 5000])
def test_300_calls_that_have_30_response_ids_between_them_are_300(layers, gap_ms):
    spans = []
    for number in range(300):
        who = {"attempt": f"a{number % 7}", "agent": ("planner", "worker", "judge")[number % 3]}
        start_ns = number * gap_ms * _MS
        spans += recorded(number, f"chatcmpl-{number % 30}", layers, start_ns=start_ns, **who)
    random.Random(0).shuffle(spans)
    calls = read_spans(spans).calls
    assert len(calls) == 300
    assert {call.attempt_id for call in calls} == {f"a{n}" for n in range(7)}
    counted = {one.agent: one.calls for one in census(spans)}
    assert counted == {"planner": 100, "worker": 100, "judge": 100}
    tokens = 600 if layers.gateway or layers.tokens else 0
    assert ledger_of(spans) == (300, tokens)


def test_three_calls_of_two_rollouts_with_the_id_that_their_caller_chose_are_three():
    spans = [
        span
        for number, attempt in enumerate(["a", "a", "b"])
        for span in recorded(number, "mine", Layers(), attempt=attempt, agent="solver", start_ns=number)
    ]
    assert [(call.attempt_id, call.response_ids) for call in read_spans(spans).calls] == [
        ("a", (0, 2)),
        ("a", (1, 2)),
        ("b", (2, 2)),
    ]


def test_a_gateway_record_from_a_machine_whose_clock_is_wrong_is_still_the_clients_call():
    client, gateway = recorded(1, "x", Layers(tokens=False, apart=True), attempt="a", agent="solver", start_ns=0)
    late = replace(gateway, start_ns=gateway.start_ns + 10**12, end_ns=gateway.end_ns + 10**12)
    assert len(read_spans([client, late]).calls) == 1
    assert sum(one.calls for one in census([client, late])) == 1


@pytest.mark.parametrize("seen", [(), (1,), (1, 2)])
def test_a_caller_that_stopped_listening_has_the_first_tokens_of_the_same_call(seen):
    client, gateway = recorded(1, "x", Layers(apart=True), attempt="a", agent="solver", start_ns=0)
    part = {semconv.response_token_ids(0): pack_token_ids(seen), semconv.STREAM_COMPLETE: False}
    cut = replace(client, attributes={**client.attributes, **part})
    (call,) = read_spans([cut, gateway]).calls
    assert call.response_ids == (1, 2)
    assert sum(one.calls for one in census([cut, gateway])) == 1


def test_a_caller_that_has_other_tokens_had_another_call():
    client, gateway = recorded(1, "x", Layers(apart=True), attempt="a", agent="solver", start_ns=0)
    other = replace(client, attributes={**client.attributes, semconv.response_token_ids(0): pack_token_ids((9, 9))})
    assert {call.response_ids for call in read_spans([other, gateway]).calls} == {(1, 2), (9, 9)}
    assert sum(one.calls for one in census([other, gateway])) == 2


def test_records_without_an_id_of_two_attempts_are_two_calls_though_their_words_and_times_agree():
    outer, inner = (
        Span(
            f"{number:032x}",
            f"{number:016x}",
            None,
            "chat",
            number,
            100 - number,
            {
                semconv.OPERATION: semconv.CHAT,
                semconv.ATTEMPT_ID: f"a{number}",
                semconv.ROLLOUT_ID: f"r{number}",
                semconv.FINISH_REASONS: ("stop",),
                "gen_ai.output.messages": '[{"role":"assistant","parts":[{"type":"text","content":"yes"}]}]',
            },
            scope=f"scope{number}",
        )
        for number in (1, 2)
    )
    assert {call.attempt_id for call in read_spans([outer, inner]).calls} == {"a1", "a2"}


def test_spans_of_two_traces_with_one_id_are_two_calls_and_each_has_its_own_reward():
    spans = []
    for trace, attempt in enumerate(["a", "b"], start=1):
        for span in recorded(trace, f"r{trace}", Layers(client=False), attempt=attempt, agent="s", start_ns=trace):
            event = {semconv.EVALUATION_NAME: "reward", semconv.EVALUATION_SCORE: float(trace)}
            scored = (SpanEvent(semconv.EVALUATION_EVENT, 5, event),)
            spans.append(replace(span, span_id="1" * 16, trace_id=f"{trace}" * 32, events=scored))
    reading = read_spans(spans)
    ids = [f"{'1' * 16}.{'1' * 32}/0", f"{'1' * 16}.{'2' * 32}/0"]
    assert [call.call_id for call in reading.calls] == ids
    attempts = {one: Attempt(one, f"r-{one}", "t", "g", ended_ns=9) for one in ("a", "b")}
    rewards = read_rewards(reading.evaluations, reading.calls, attempts, "reward")
    assert (rewards.of_calls, rewards.problems) == (dict(zip(ids, (1.0, 2.0), strict=True)), ())
    assert set(words_of(spans)) == set(ids)


def test_a_reward_by_a_response_id_that_several_calls_have_scores_none_of_them_unless_it_names_the_attempt():
    calls = read_spans(
        [
            span
            for number, attempt in enumerate(["a", "b"])
            for span in recorded(number, "x", Layers(), attempt=attempt, agent="solver", start_ns=number)
        ]
    ).calls
    attempts = {one: Attempt(one, f"r-{one}", "t", "g", ended_ns=9) for one in ("a", "b")}
    reward = Evaluation("reward", 1.0, None, None, None, 5, response_id="x")
    table = read_rewards([reward], calls, attempts, "reward")
    assert table.of_calls == {}
    assert table.problems[0].startswith("response x: reward scores it, and several calls have this id")
    named = replace(reward, rollout_id="r-b", attempt_id="b")
    assert read_rewards([named], calls, attempts, "reward").of_calls == {calls[1].call_id: 1.0}


_LAYERS = st.builds(Layers, *[st.booleans()] * 5).filter(lambda one: one.foreign or one.client or one.gateway)
_CALLS = st.lists(
    st.tuples(_LAYERS, st.sampled_from(["x", "y"]), st.sampled_from(["a", "b"]), st.integers(0, 3000)), max_size=8
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(_CALLS, st.randoms(use_true_random=False))
def test_whatever_ids_calls_share_every_token_that_came_in_is_in_the_ledger(calls, shuffler):
    spans, tokens = [], 0
    for number, (layers, response, attempt, start_ms) in enumerate(calls):
        own = recorded(number, response, layers, attempt=attempt, agent="solver", start_ns=start_ms * _MS)
        spans += own
        tokens += 2 * any(semconv.PROMPT_TOKEN_IDS in span.attributes for span in own)
    shuffler.shuffle(spans)
    assert ledger_of(spans)[1] == tokens
    # A record of words alone is of any call of its id, attempt and time: nothing that it states is different.
    assert tokens // 2 <= len(read_spans(spans).calls) <= len(spans)


def test_a_server_that_gives_every_response_one_id_takes_no_longer():
    def seconds(count: int) -> float:
        spans = [
            span
            for number in range(count)
            for span in recorded(
                number, "0", Layers(foreign=True), attempt=f"a{number}", agent="s", start_ns=number * 10 * _MS
            )
        ]
        start = time.process_time()
        assert len(read_spans(spans).calls) == count
        return time.process_time() - start

    seconds(200)
    assert seconds(2000) < 25 * seconds(200)

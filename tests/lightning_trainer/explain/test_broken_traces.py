"""Ten ways in which a trace is broken: each time the first line names the cause and what to do about it."""

import json
import time
from dataclasses import replace
from typing import Any

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.config.file import load_config
from lightning_trainer.judges.reliability.report import unknown_corrections
from lightning_trainer.types import Span

SECOND_NS = 1_000_000_000


@pytest.fixture
def recorded(store, take_step, attempt, ask):
    """Store an attempt beside a healthy one of its group that earned nothing, and let a step take both."""

    async def record(*spans: Span, step: bool = True, **known: Any):
        other = attempt("other", turns=(replace(ask, response=(50,), answer="7"),), reward=0.0)
        await store.append([*other.spans, *spans])
        return await take_step(["other", "a1"], **known) if step else None

    return record


async def test_a_healthy_one_is_trained(recorded, explain, attempt):
    await recorded(*attempt("a1").spans)
    assert explain("r-a1")[0] == "rollout r-a1 is trained: step 1, 2 calls, 5 sampled tokens"


async def test_no_reward(recorded, explain, attempt):
    await recorded(*attempt("a1", reward=None).spans)
    first = explain("r-a1")[0]
    assert first.startswith(
        "rollout r-a1 is not trained: no reward: nothing scored attempt a1, and missing is not zero"
    )
    assert "lt.reward(...)" in first
    assert "to POST /lightning/rollouts/r-a1/rewards" in first


async def test_a_reward_of_another_name(recorded, explain, attempt):
    await recorded(*attempt("a1", reward_name="accuracy").spans)
    first = explain("r-a1")[0]
    assert "no reward: attempt a1 has evaluations named 'accuracy', and the reward of policy math is 'reward'" in first
    assert 'set reward = "accuracy"' in first


async def test_a_judge_that_failed(recorded, explain, attempt):
    await recorded(*attempt("a1", reward=None, explanation="the judge timed out").spans)
    first = explain("r-a1")[0]
    assert "no reward: evaluation 'reward' of attempt a1 gave no number (None): the judge timed out" in first


async def test_retokenized_prompt_whose_text_continues_and_whose_tokens_do_not(recorded, explain, attempt, ask, finish):
    rendered_again = (10, 11, 12, 20, 23, 30, 31)  # "<calc>2*3</calc>" in two tokens instead of three
    await recorded(*attempt("a1", turns=(ask, replace(finish, prompt=rendered_again))).spans)
    first = explain("r-a1")[0]
    assert first.startswith("rollout r-a1 is trained (step 1, 2 calls, 5 sampled tokens), but retokenized: ")
    assert "call 2 sends the answer of call 1 back as text, and its prompt has other tokens for it" in first
    assert "they part at token 4 (sampled 21 22, shown 23 30 31)" in first


@pytest.mark.parametrize(
    "message",
    [
        {"role": ["user"], "parts": [{"type": "text", "content": "hello"}]},  # before: unhashable type: 'list'
        {"role": {"user": 1}, "parts": [{"type": ["text"], "name": {}, "content": 7}]},
        {"role": "user", "parts": 5},
        {"role": "user", "parts": {"type": "text"}},
    ],
)
async def test_messages_of_any_shape_are_explained(recorded, explain, attempt, message):
    a1 = attempt("a1")
    asked = json.dumps([message])
    await recorded(
        *(
            replace(span, attributes={**span.attributes, semconv.INPUT_MESSAGES: asked})
            if semconv.INPUT_MESSAGES in span.attributes
            else span
            for span in a1.spans
        )
    )
    assert explain("r-a1")[0].startswith("rollout r-a1 is trained")


async def test_retokenized_because_only_text_was_recorded(recorded, explain, attempt):
    a1 = attempt("a1")
    await recorded(*(span for span in a1.spans if span.scope != semconv.GATEWAY_SCOPE))
    first = explain("r-a1")[0]
    assert "is not trained: text only: of 2 calls the text was recorded and no token ids" in first
    assert "tokenized again may give other ids" in first


@pytest.mark.parametrize("prompt_known", [True, False], ids=["streamed", "whole"])
async def test_a_call_that_its_caller_cancelled(recorded, explain, attempt, ask, finish, prompt_known):
    # Before: "text only ... let the agent's calls go to the gateway", which had answered it
    cancelled = replace(finish, complete=False, response=(), answer="")

    def as_recorded(span):
        ids = (
            semconv.response_token_ids(0),
            semconv.response_logprobs(0),
            semconv.RESPONSE_ID,
            semconv.OUTPUT_MESSAGES,
        )
        left_out = ids if prompt_known else (*ids, semconv.PROMPT_TOKEN_IDS)
        kept = {name: value for name, value in span.attributes.items() if name not in left_out}
        return (
            replace(span, attributes=kept)
            if span.span_id in (a1.span_id("client-1"), a1.span_id("gateway-1"))
            else span
        )

    a1 = attempt("a1", turns=(ask, cancelled))
    await recorded(*map(as_recorded, a1.spans))
    told = "\n".join(explain("r-a1"))
    assert (
        "cancelled call: call 2 was cancelled by the caller before anything was answered (the caller went away)" in told
    )
    assert "to the gateway" not in told


@pytest.mark.parametrize(
    ("route", "said"),
    [
        (
            {semconv.ROUTE_POLICY: "math", semconv.ROUTE_FELL_BACK: True},
            "2 calls went to another model because the daemon was away",
        ),
        ({semconv.ROUTE_POLICY: "math"}, "2 calls went to the gateway, which"),
        (
            {semconv.ROUTE_LATE: True},
            "2 calls went to another model because the daemon, busy or far away, had not said",
        ),
    ],
)
async def test_what_was_done_already_is_not_advised(recorded, explain, attempt, route, said):
    # Before: "let the agent's calls go to the gateway (set LIGHTNING_ENDPOINT ...)", to where they had been sent
    spans = [span for span in attempt("a1").spans if span.scope != semconv.GATEWAY_SCOPE]
    await recorded(*(replace(span, attributes={**span.attributes, **route}) for span in spans))
    first = explain("r-a1")[0]
    assert said in first
    assert "set LIGHTNING_ENDPOINT" not in first


async def test_a_trusted_host_that_gave_no_ids_is_said_to_be_one(recorded, explain, attempt):
    spans = [span for span in attempt("a1").spans if span.scope != semconv.GATEWAY_SCOPE]
    await recorded(*(replace(span, attributes={**span.attributes, semconv.NO_TOKEN_IDS: True}) for span in spans))
    first = explain("r-a1")[0]
    assert "2 calls went to a trusted host, whose answers had no token ids: vLLM gives them" in first
    assert "let the agent's calls go to the gateway" in first


async def test_another_call_with_a_response_id_of_its_own_calls_is_not_among_them(store, recorded, explain, attempt):
    # Before: some servers' ids repeat, and calls of other programs were listed among a rollout's own.
    a1 = attempt("a1")
    await recorded(*a1.spans)
    before = explain("r-a1")
    gateway = next(span for span in a1.spans if span.scope == semconv.GATEWAY_SCOPE)
    elsewhere = {
        "gen_ai.operation.name": "chat",
        semconv.RESPONSE_ID: gateway.attributes[semconv.RESPONSE_ID],
        semconv.FINISH_REASONS: ("stop",),
    }
    at_ns = gateway.end_ns + 10**12
    others = "logfire.openai"
    await store.append([Span("f" * 32, "f" * 16, None, "chat", at_ns, at_ns + 1, elsewhere, scope=others)])
    assert [line.replace("8 spans", "7 spans") for line in explain("r-a1")] == before  # it is read, and not among them


async def test_over_long(recorded, explain, attempt, ask):
    long = replace(ask, prompt=tuple(range(100, 190)))
    await recorded(*attempt("a1", turns=(long,)).spans)
    assert (
        "is not trained: over-long: its 1 call is longer than max_sample_tokens = 64 "
        "(the longest, call 1, has 93 tokens: 90 prompt and 3 sampled)"
    ) in explain("r-a1")[0]


async def test_over_long_in_part(recorded, explain, attempt, ask, finish):
    long = replace(ask, prompt=tuple(range(100, 190)), response=(1,), messages=(("user", "a long page"),))
    await recorded(*attempt("a1", turns=(ask, finish, long)).spans)
    first = explain("r-a1")[0]
    assert (
        "is trained in part (step 1, 2 of 3 calls, 5 of 6 sampled tokens): over-long: 1 of its 3 calls is longer"
        in first
    )


async def test_sampling_that_nobody_wrote_down(recorded, explain, attempt):
    def narrowed(span):
        if span.scope != semconv.GATEWAY_SCOPE:
            return span
        return replace(span, attributes={**span.attributes, semconv.REQUEST_TOP_P: 0.5})

    await recorded(*map(narrowed, attempt("a1").spans))
    assert (
        "is not trained: sampling unknown: 2 calls: it is not known what the tokens were drawn from: the request "
        "restricted it (top_p = 0.5), and the engine did not say what that left"
    ) in explain("r-a1")[0]


async def test_wrong_agent_name(recorded, explain, attempt, ask, finish):
    misspelt = [replace(turn, agent="slover") for turn in (ask, finish)]
    await recorded(*attempt("a1", turns=misspelt).spans)
    first = explain("r-a1")[0]
    assert "agent name: its 2 calls are by 'slover', and policy math claims 'solver', 'checker*'" in first
    assert "'slover' is nearest to 'solver'" in first


async def test_interrupted_stream(recorded, explain, attempt, ask, finish):
    await recorded(*attempt("a1", turns=(ask, replace(finish, complete=False))).spans)
    first = explain("r-a1")[0]
    assert "is trained in part (step 1, 1 of 2 calls, 3 of 5 sampled tokens): interrupted stream: call 2" in first
    assert "ended early, after 2 sampled tokens (the caller went away)" in first


async def test_group_of_one(store, take_step, explain, attempt):
    await store.append(attempt("a1").spans)
    first = explain("r-a1")[0]
    assert "is not trained yet: group of one: group g has 1 of group_size = 4 attempts" in first
    await take_step(["a1"])
    first = explain("r-a1")[0]
    assert "is not trained: group of one: group g holds this attempt alone" in first
    assert "group_size = 4 times with one group_id" in first


async def test_duplicate_spans(recorded, explain, attempt):
    a1 = attempt("a1")
    clients = [span for span in a1.spans if span.name == "chat math"]
    foreign = [
        replace(span, span_id=f"{number:016x}", scope="opentelemetry.instrumentation.openai_v2")
        for number, span in enumerate(clients, start=1)
    ]
    await recorded(*a1.spans, *a1.spans, *foreign)
    first = explain("r-a1")[0]
    assert "is trained (step 1, 2 calls, 5 sampled tokens), but duplicate spans: 2 calls were recorded 6 times" in first
    assert "opentelemetry.instrumentation.openai_v2" in first


async def test_clock_skew(recorded, explain, attempt):
    a1 = attempt("a1")
    fast = [
        replace(span, start_ns=span.start_ns - 5 * SECOND_NS, end_ns=span.end_ns - 5 * SECOND_NS)
        if span.scope == semconv.GATEWAY_SCOPE
        else span
        for span in a1.spans
    ]
    await recorded(*fast)
    first = explain("r-a1")[0]
    assert "is trained (step 1, 2 calls, 5 sampled tokens), but clock skew: 'gateway chat'" in first
    assert "starts 4.9 s before the span that it lies in, 'chat math'" in first


async def test_a_span_that_ends_before_it_starts(recorded, explain, attempt):
    a1 = attempt("a1")
    odd = [replace(s, end_ns=s.start_ns - SECOND_NS) if s.name == "chat math" else s for s in a1.spans]
    await recorded(*odd)
    assert "clock skew: 'chat math'" in (first := explain("r-a1")[0])
    assert "ends 1.0 s before it starts (2 spans in all)" in first


async def test_missing_parent_that_alone_says_whose_calls_they_are(recorded, explain, attempt):
    a1 = attempt("a1", agent_attribute=False)
    agents = [a1.span_id("agent-0"), a1.span_id("agent-1")]
    await recorded(*(span for span in a1.spans if span.span_id not in agents))
    first = explain("r-a1")[0]
    assert "is not trained: missing parent: 2 calls lie below spans" in first
    assert all(span_id in first for span_id in agents)
    assert "which never arrived, and nothing else says their agent's name" in first


async def test_missing_parent_names_what_its_own_calls_lack(recorded, explain, attempt, ask, finish):
    nameless = replace(finish, agent=None)
    a1 = attempt("a1", turns=(ask, nameless), agent_attribute=False)
    lost = a1.span_id("agent-0")
    kept = [span for span in a1.spans if span.span_id != lost]
    named = {semconv.AGENT_NAME: "solver"}
    below = {a1.span_id("client-0"), a1.span_id("gateway-0")}
    ids = (semconv.ROLLOUT_ID, semconv.ATTEMPT_ID)
    without = [
        replace(span, attributes={name: value for name, value in (span.attributes | named).items() if name not in ids})
        if span.span_id in below
        else span
        for span in kept
    ]
    await recorded(*without)
    told = "\n".join(explain("r-a1"))
    assert "nothing else says their agent's name" not in told


async def test_missing_root(recorded, explain, attempt):
    a1 = attempt("a1")
    await recorded(*(span for span in a1.spans if span.span_id != a1.span_id("root")), step=False)
    first = explain("r-a1")[0]
    assert "is not trained yet: still running: attempt a1 has not ended, for its root span has not arrived" in first
    assert a1.span_id("root") in first


async def test_mixed_versions_in_one_attempt(recorded, explain, attempt, ask, finish):
    await recorded(*attempt("a1", turns=(ask, replace(finish, version=4))).spans)
    first = explain("r-a1")[0]
    assert "is trained (step 1, 2 calls, 5 sampled tokens), but mixed versions: " in first
    assert "weights were published while attempt a1 ran (version 3: 1 call, version 4: 1 call)" in first


async def test_an_agent_whose_clock_is_ahead_was_heard_of_just_now(store, attempt, explain):
    ahead_ns = time.time_ns() + 3600 * 10**9
    agents = [replace(span, end_ns=ahead_ns) for span in attempt("a1").spans if span.parent_span_id is not None]
    await store.append(agents)
    assert "(6 spans have, the newest 0 ms ago; spans below it name" in explain("r-a1")[0]


@pytest.mark.parametrize("step", [False, True])
async def test_the_reward_of_a_judge_that_is_refused(recorded, explain, page, attempt, folder, step):
    """It gave numbers, and none of them counts: why is what `build` and the daemon say."""
    settings = folder / "lightning.toml"
    reward = "reward = { reward = { weight = 1.0, correct = true } }\n"
    judge = '[[judge]]\nname = "reward"\nkind = "program"\ncommand = ["true"]\nchecked_by = ["right"]\n'
    settings.write_text(settings.read_text() + reward + judge)
    corrections = unknown_corrections(load_config(settings).policy[0].corrected_rewards)
    await recorded(*attempt("a1", judge="reward").spans, step=step, corrections=corrections)
    first = explain("r-a1")[0]
    assert "no reward: judge reward is not corrected and its reward counts as missing: of the 0 attempts" in first
    assert first in await page("/rollout?id=r-a1")
    assert ": no reward</p>" in await page("/group?id=g")


async def test_a_reward_of_a_kind_that_the_credit_scheme_does_not_use(recorded, explain, attempt, folder):
    settings = folder / "lightning.toml"
    settings.write_text(settings.read_text() + '[policy.credit]\nscheme = "steps"\n')
    await recorded(*attempt("a1").spans)
    first = explain("r-a1")[0]
    assert (
        "no reward: attempt a1 was scored as a whole, which credit scheme 'steps' does not use; score what it uses, or "
        "choose a scheme of docs/credit.md that uses such rewards" in first
    )

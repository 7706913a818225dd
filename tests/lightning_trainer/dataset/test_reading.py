"""Recorded spans as calls, attempts, rewards and words; and words as ids that reinforcement learning may take."""

import json
from dataclasses import replace

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.dataset.examples import Needs
from lightning_trainer.dataset.reading import Recording, read_recording, retokenize
from lightning_trainer.dataset.selection import demonstrations
from lightning_trainer.retokenize.tokenizer import PolicyTokenizer
from lightning_trainer.samples.batches import Build, build_batch
from lightning_trainer.types import AttemptState, Fidelity, Span


class Engine:
    """Serves the model that answered (``m``); a real one scores in ``retokenize/test_engine_scores.py``."""

    model = "m"

    def score(self, token_ids) -> tuple[float, ...]:
        return (-1.5,) * (len(token_ids) - 1)


@pytest.fixture(scope="module")
def tokenizer(tiny_model) -> PolicyTokenizer:
    return PolicyTokenizer(tiny_model)


@pytest.fixture
def in_words_only(attempt_spans) -> Recording:
    spans = [
        *attempt_spans("a1", 1, reward=1.0, exact=False),
        *attempt_spans("a2", 2, reward=0.0, exact=False, answer="6"),
    ]
    return read_recording(spans, with_words=True)


def build(recording: Recording, policy) -> Build:
    return build_batch(recording.calls, recording.attempts, recording.evaluations, policy, 1)


def test_calls_in_words_are_no_samples(in_words_only, make_policy) -> None:
    assert {row.reason for row in build(in_words_only, make_policy()).ledger} == {"fidelity_too_low"}


def test_verified_calls_are_no_samples_unless_the_policy_says_so(in_words_only, make_policy, tokenizer) -> None:
    verified = retokenize(in_words_only, make_policy(), tokenizer, Engine())
    assert {call.fidelity for call in verified.calls} == {Fidelity.VERIFIED}
    refused = build(verified, make_policy())
    assert refused.batch is None
    assert {row.reason for row in refused.ledger} == {"retokenised"}
    assert any("retokenised" in problem for problem in refused.problems)

    allowed = build(verified, make_policy(allow_retokenized=True))
    assert allowed.batch is not None
    for sample, answer in zip(allowed.batch.samples, ("5", "6"), strict=True):
        (segment,) = sample.segments
        assert tokenizer.decoded(sample.token_ids[segment.start : segment.end]) == f"{answer}<|im_end|>"
        assert sample.behavior_logprobs[segment.start : segment.end] == (-1.5, -1.5)
        # The model that answered has no version in its name: it is what the policy starts from.
        assert segment.policy_version == 0


def test_without_scores_verified_calls_have_nothing_to_correct_with(attempt_spans, make_policy, tokenizer) -> None:
    spans = attempt_spans("a1", 1, reward=1.0, exact=False)
    prompt = tokenizer.prompt_ids([{"role": "user", "content": "2+3?"}], [])
    spans[1].attributes.update({"gen_ai.usage.input_tokens": len(prompt), "gen_ai.usage.output_tokens": 2})
    policy = make_policy(allow_retokenized=True)
    verified = retokenize(read_recording(spans, with_words=True), policy, tokenizer)
    assert {row.reason for row in build(verified, policy).ledger} == {"no_policy_version"}


def test_calls_of_other_agents_and_exact_calls_are_left_as_they_are(attempt_spans, make_policy, tokenizer) -> None:
    spans = [*attempt_spans("a1", 1, reward=1.0), *attempt_spans("a2", 2, reward=0.0, exact=False, agent="stranger")]
    recording = read_recording(spans, with_words=True)
    assert retokenize(recording, make_policy(), tokenizer, Engine()).calls == recording.calls


def test_an_attempt_without_its_root_is_running(attempt_spans) -> None:
    (attempt,) = read_recording(attempt_spans("a1", 1, reward=1.0)[1:]).attempts
    assert attempt.state is AttemptState.RUNNING


def test_rewards_of_agent_lightning_reach_its_calls(recorded, make_policy) -> None:
    """Its exporter names rollout and attempt in the resource, and no span marks their end."""
    named = [
        {"agentlightning.rollout_id": f"ro-{number}", "agentlightning.attempt_id": f"at-{number}"} for number in (1, 2)
    ]
    spans = [
        replace(span, trace_id=f"{number:x}{span.trace_id[1:]}", resource=place)
        for number, place in enumerate(named)
        for span in recorded("agentops")
    ]
    recording = read_recording(spans, with_words=True)
    assert [(one.attempt_id, one.rollout_id, one.state) for one in recording.attempts] == [
        ("at-1", "ro-1", AttemptState.SUCCEEDED),
        ("at-2", "ro-2", AttemptState.SUCCEEDED),
    ]
    assert {one.ended_ns for one in recording.attempts} == {max(span.end_ns for span in spans)}
    found = demonstrations(recording, make_policy(), Needs.WORDS, min_reward=0.4)
    assert {example.attempt_id for example in found.examples} == {"at-1", "at-2"}

    ours = {semconv.ROLLOUT_ID: "ours", semconv.ATTEMPT_ID: "first"}
    inside = [replace(span, attributes={**span.attributes, **ours}) for span in spans]
    assert [one.attempt_id for one in read_recording(inside).attempts] == ["first"]


@pytest.mark.parametrize("name", ["genai", "openinference", "openllmetry", "openllmetry_numbered", "langsmith"])
def test_what_other_instrumentations_recorded_is_demonstrations_in_words(recorded, make_policy, name: str) -> None:
    """Recorded from the real packages: a LangChain agent that calls its tool and then answers."""
    found = demonstrations(read_recording(recorded(name), with_words=True), make_policy(), Needs.WORDS)
    called, answered = found.examples
    assert called.answer is not None
    assert answered.answer is not None
    (call,) = called.answer["tool_calls"]
    assert call["function"]["name"] == "calculator"
    assert [tool["function"]["name"] for tool in called.tools] == ["calculator"]
    assert answered.answer["content"]
    assert answered.prompt is not None
    assert answered.prompt[-1]["role"] == "tool"


@pytest.mark.parametrize(
    ("result", "written"),
    [
        ({"output": {"type": "json", "value": {"temp": 20}}}, '{"temp":20}'),
        ({"output": {"type": "content", "value": [{"type": "text", "text": "20"}]}}, "20"),
        ({"result": {"value": 20, "unit": "C"}}, '{"value":20,"unit":"C"}'),  # as version 4 writes it
    ],
)
def test_a_tools_result_that_is_an_object_is_shown(make_policy, result: dict, written: str) -> None:
    asked = [{"role": "tool", "content": [{"type": "tool-result", "toolCallId": "c", **result}]}]
    attributes = {
        "ai.operationId": "ai.generateText.doGenerate",
        "ai.telemetry.functionId": "solver",
        "ai.prompt.messages": json.dumps(asked),
        "ai.response.finishReason": "stop",
        "ai.response.text": "It is 20 degrees.",
    }
    recording = read_recording([Span("1" * 32, "2" * 16, None, "ai", 1, 2, attributes)], with_words=True)
    (example,) = demonstrations(recording, make_policy(), Needs.WORDS).examples
    assert example.prompt == ({"role": "tool", "tool_call_id": "c", "content": written},)

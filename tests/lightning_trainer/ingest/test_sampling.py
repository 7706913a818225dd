"""What a call's tokens were drawn from: told by the request, or by the engine, or not trained."""

from dataclasses import replace

import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.spans.packing import pack_logprobs, pack_token_ids
from lightning_instrumentation.wire.sampling import sampling

from lightning_trainer.experts import RoutedExperts
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.sampling import Shaping, support_of
from lightning_trainer.types import Call, Span

SUPPORT = support_of(50, [[7, 9], None])


def _read(**attributes) -> tuple[Call, tuple[str, ...]]:
    known = {
        semconv.OPERATION: semconv.CHAT,
        semconv.RESPONSE_ID: "r",
        semconv.POLICY: "p",
        semconv.POLICY_VERSION: 3,
        semconv.PROMPT_TOKEN_IDS: pack_token_ids([1, 2]),
        semconv.CHOICES: 1,
        semconv.response_token_ids(0): pack_token_ids([7, 8]),
        semconv.response_logprobs(0): pack_logprobs([-0.5, -0.5]),
    }
    attributes = {name.replace("__", "."): value for name, value in attributes.items()}
    span = Span("1" * 32, "2" * 16, None, "gateway chat", 1, 2, {**known, **attributes}, scope=semconv.GATEWAY_SCOPE)
    reading = read_spans([span])
    (call,) = reading.calls
    return call, reading.problems


def _asked(**body) -> dict:
    return sampling(body)


def test_a_plain_call_has_neither() -> None:
    call, problems = _read(**_asked(temperature=0.7, seed=1, stop=["x"], max_tokens=9, n=1, tool_choice="auto"))
    assert (call.shaping, call.support, call.sampling_unknown, problems) == (None, None, None, ())


def test_what_the_engine_says_is_read() -> None:
    call, problems = _read(**_asked(top_p=0.5), **{semconv.response_support(0): SUPPORT.encode()})
    assert call.support == SUPPORT
    assert (call.sampling_unknown, problems) == (None, ())


def test_the_experts_that_it_went_through_are_read() -> None:
    experts = RoutedExperts(0, 2, 1, 1, bytes(6))
    call, problems = _read(**{semconv.response_routed_experts(0): experts.encode()})
    assert (call.routed_experts, problems) == (experts, ())


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (
            RoutedExperts(0, 2, 1, 1, bytes(8)).encode(),
            "they are of the first 4 tokens, and all but the last of 4 have some",
        ),
        (b"no zlib", "routed experts cannot be read"),
    ],
)
def test_experts_that_contradict_the_tokens_are_left_out_and_said(body, sentence) -> None:
    call, (problem,) = _read(**{semconv.response_routed_experts(0): body})
    assert (call.routed_experts, call.sampling_unknown) == (None, None)
    assert sentence in problem


def test_penalties_and_biases_follow_from_the_request_as_vllm_reads_them() -> None:
    asked = {"logit_bias": {"9": 200, "3": -1.5}, "presence_penalty": 1, "repetition_penalty": 1.2}
    call, _ = _read(**_asked(**asked, frequency_penalty=0.5))
    assert call.shaping == Shaping(((3, -1.5), (9, 100.0)), 1.0, 0.5, 1.2)
    assert call.sampling_unknown is None
    plain, _ = _read(**_asked(logit_bias={}, presence_penalty=0, frequency_penalty=0.0, repetition_penalty=1))
    assert plain.shaping is None


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"top_p": 0.5}, "top_p = 0.5"),
        ({"top_k": 20}, "top_k = 20"),
        ({"min_p": 0.1}, "min_p = 0.1"),
        ({"min_tokens": 3}, "min_tokens = 3"),
        ({"bad_words": ["no"]}, "bad_words"),
        ({"allowed_token_ids": [1, 2]}, "allowed_token_ids"),
        ({"response_format": {"type": "json_object"}}, "structured output = json_object"),
        ({"structured_outputs": {"regex": "a+"}}, "structured output = regex"),
        ({"tool_choice": "required"}, "tool_choice = required"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice = named"),
        ({"top_p": 0.5, "response_format": {"type": "json_schema"}}, "top_p = 0.5, structured output = json_schema"),
    ],
)
def test_a_request_that_restricts_is_not_trained_where_the_engine_does_not_say_what_was_left(asked, named) -> None:
    call, _ = _read(**_asked(**asked))
    assert call.support is None
    assert call.sampling_unknown == f"the request restricted it ({named}), and the engine did not say what that left"
    known, _ = _read(**_asked(**asked), **{semconv.SUPPORT_KNOWN: True})
    assert (known.support, known.sampling_unknown) == (None, None)


def test_a_greedy_request_is_not_restricted_by_what_vllm_leaves_out_then() -> None:
    call, _ = _read(**_asked(temperature=0, top_p=0.5, top_k=3, min_p=0.1))
    assert call.sampling_unknown is None
    call, _ = _read(**_asked(temperature=0, top_p=0.5, response_format={"type": "json_object"}))
    assert call.sampling_unknown is not None
    assert "json_object" in call.sampling_unknown
    call, _ = _read(**_asked(temperature=1e-6, top_p=0.5))
    assert call.sampling_unknown is not None, "vLLM makes 0.01 of it, and heeds top_p"
    assert "top_p = 0.5" in call.sampling_unknown


@pytest.mark.parametrize("name", ["use_beam_search", "thinking_token_budget", "vllm_xargs", "logits_processors"])
def test_what_cannot_be_computed_is_not_trained_whatever_the_engine_says(name) -> None:
    told = {semconv.SUPPORT_KNOWN: True, semconv.response_support(0): SUPPORT.encode()}
    call, _ = _read(**_asked(**{name: {"a": 1}}), **told)
    assert call.support is None
    assert call.sampling_unknown == f"the request asked for {name}, which the trainer cannot compute"


def test_a_bias_that_is_too_long_to_record_is_named() -> None:
    call, _ = _read(**_asked(logit_bias={str(token): 1.25 for token in range(10_000)}))
    assert call.sampling_unknown is not None
    assert "logit_bias (10000 entries, sha256:" in call.sampling_unknown


def test_the_engines_own_sentence_is_kept() -> None:
    told = {semconv.SUPPORT_KNOWN: True, semconv.response_support_unknown(0): "more than 16 MiB"}
    call, problems = _read(**_asked(top_p=0.99), **told)
    assert (call.sampling_unknown, problems) == ("more than 16 MiB", ())


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"\0\1", "a support cannot be read"),
        (SUPPORT.first(1).encode(), "it is of 1 tokens, and 2 were sampled"),
        (support_of(50, [[6, 9], None]).encode(), "token 0 is 7, which it says could not have been sampled"),
        (support_of(8, [None, None]).encode(), "token 1 is 8, which"),
        (support_of(5, [None, None]).encode(), "token 0 is 7, which"),
        (replace(SUPPORT, pattern_L=(3, 3)).encode(), "names a pattern that it does not have"),
        ("text", "it is a str, not bytes"),
    ],
)
def test_what_contradicts_itself_is_a_problem_and_not_trained(body, said) -> None:
    call, problems = _read(**_asked(top_p=0.5), **{semconv.response_support(0): body})
    assert call.support is None
    assert call.sampling_unknown is not None
    assert said in call.sampling_unknown
    (problem,) = problems
    assert problem.startswith(f"span {'2' * 16}: lightning.response.0.support: ")
    assert said in problem


def test_an_interrupted_call_says_nothing_of_it() -> None:
    call, problems = _read(**_asked(top_p=0.5), **{semconv.STREAM_COMPLETE: False})
    assert (call.complete, call.sampling_unknown, problems) == (False, None, ())


TEXT = {"gen_ai.operation.name": "chat", "gen_ai.response.finish_reasons": '["STOP"]'}
BODY = '{"temperature": 0.5, "top_p": 0.9, "presence_penalty": 0.25}'


@pytest.mark.parametrize(
    "attributes",
    [
        TEXT
        | {
            "gen_ai.request.temperature": "0.5",
            "gen_ai.request.top_p": "0.9",
            "gen_ai.request.presence_penalty": "0.25",
        },
        {"openinference.span.kind": "LLM", "output.value": "5", "llm.invocation_parameters": BODY},
        {"langsmith.span.kind": "llm", "gen_ai.prompt": BODY, "gen_ai.usage.output_tokens": 1},
        TEXT | {"logfire.span_type": "span", "request_data": BODY},
        TEXT
        | {
            "llm.request.type": "chat",
            "gen_ai.request.temperature": 0.5,
            "gen_ai.request.top_p": 0.9,
            "llm.presence_penalty": 0.25,
        },
    ],
    ids=["Spring AI: all its values are text", "OpenInference", "LangSmith", "Logfire", "OpenLLMetry before 0.50"],
)
def test_every_dialect_says_how_an_answer_was_sampled(attributes) -> None:
    """Before, such a call counted as one at temperature 1, from the whole vocabulary."""
    (call,) = read_spans([Span("1" * 32, "2" * 16, None, "chat", 1, 2, attributes)]).calls
    assert (call.temperature, call.shaping) == (0.5, Shaping((), 0.25, 0.0, 1.0))
    assert call.sampling_unknown is not None
    assert "top_p = 0.9" in call.sampling_unknown


def test_langchains_temperature_is_in_langsmiths_metadata() -> None:
    attributes = {
        "langsmith.span.kind": "llm",
        "gen_ai.usage.output_tokens": 1,
        "langsmith.metadata.ls_temperature": 0.5,
    }
    (call,) = read_spans([Span("1" * 32, "2" * 16, None, "chat", 1, 2, attributes)]).calls
    assert call.temperature == 0.5


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("0.7", 0.7),
        ("1.0E-4", 1e-4),
        ("2", 2.0),
        (0, 0.0),
        ("nan", 1.0),
        ("1_0", 1.0),
        (" 1", 1.0),
        ("-1", 1.0),
        ("٣", 1.0),
    ],
)
def test_a_temperature_is_a_number_or_its_text(written, read) -> None:
    span = Span("1" * 32, "2" * 16, None, "chat", 1, 2, TEXT | {"gen_ai.request.temperature": written})
    (call,) = read_spans([span]).calls
    assert call.temperature == read

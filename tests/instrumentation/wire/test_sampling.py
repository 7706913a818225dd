"""What a request asks of the sampler is read from every API, and a strange value breaks nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightning_instrumentation import semconv
from lightning_instrumentation.wire.sampling import sampling

_SCHEMA = {"type": "object"}
_KEYS = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "n", "stop", "stop_token_ids", "allowed_token_ids"),
    *("bad_words", "logit_bias", "response_format", "text", "output_config", "structured_outputs", "tool_choice"),
    *("ignore_eos", "min_tokens", "use_beam_search", "vllm_xargs", "logits_processors", "repetition_penalty"),
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.parametrize(
    ("body", "kind", "form"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": _SCHEMA}}}, "json_schema", "json"),
        ({"response_format": {"type": "json_object"}}, "json_object", "json"),
        ({"response_format": {"type": "text"}}, None, "text"),
        ({"response_format": {"type": "structural_tag", "structures": []}}, "structural_tag", None),
        ({"text": {"format": {"type": "json_schema", "schema": _SCHEMA}}}, "json_schema", "json"),
        ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, None, "text"),
        ({"output_config": {"format": {"type": "json_schema", "schema": _SCHEMA}}}, "json_schema", "json"),
        ({"structured_outputs": {"json": _SCHEMA}}, "json_schema", None),
        ({"structured_outputs": {"regex": "a+"}}, "regex", None),
        ({"structured_outputs": {"choice": ["a"]}}, "choice", None),
        ({"structured_outputs": {"grammar": "root ::= x"}}, "grammar", None),
    ],
)
def test_structured_output_is_named_whichever_api_asks(body, kind, form):
    read = sampling(body)
    assert read.get(semconv.REQUEST_STRUCTURED_OUTPUT) == kind
    assert read.get(semconv.OUTPUT_TYPE) == form
    assert (semconv.REQUEST_STRUCTURED_OUTPUT_HASH in read) == (kind is not None)


@pytest.mark.parametrize(
    ("choice", "read"),
    [
        ("auto", None),
        ("none", None),
        ({"type": "auto"}, None),
        ("required", "required"),
        ({"type": "any"}, "required"),
        ({"type": "tool", "name": "f"}, "named"),
        ({"type": "function", "function": {"name": "f"}}, "named"),
    ],
)
def test_a_forced_tool_is_named_whichever_api_asks(choice, read):
    assert sampling({"tool_choice": choice}).get(semconv.REQUEST_TOOL_CHOICE) == read


def test_one_schema_has_one_hash():
    one, same, other = (
        sampling({"response_format": {"type": "json_schema", "json_schema": schema}})
        for schema in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1})
    )
    assert one == same != other


def test_nothing_is_read_of_a_body_that_asks_nothing():
    assert sampling({"model": "m", "messages": [], "max_tokens": 3}) == {}


@given(st.dictionaries(st.sampled_from(_KEYS), _JSON, max_size=6))
def test_whatever_is_sent_the_attributes_are_ones_that_a_span_can_hold(body):
    for name, value in sampling(body).items():
        assert isinstance(name, str)
        for one in value if isinstance(value, tuple) else (value,):
            assert isinstance(one, str | bool | float) or -(2**63) <= one < 2**63


@pytest.mark.parametrize(
    ("given", "read"),
    [("0.3", 0.3), ("2", 2), (True, 1), ("warm", None), ("nan", None), ([0.3], None), ("1e400", None)],
)
def test_numbers_are_read_as_the_engine_reads_them(given, read):
    """Before: a temperature in text was sampled at and recorded as none, so the calls were scored at 1."""
    assert sampling({"temperature": given}).get(semconv.REQUEST_TEMPERATURE) == read


def test_no_token_of_thinking_is_something_that_was_asked_for():
    assert sampling({"thinking_token_budget": 0})[semconv.REQUEST_UNKNOWN] == ("thinking_token_budget",)
    assert semconv.REQUEST_UNKNOWN not in sampling({"use_beam_search": False, "thinking_token_budget": None})

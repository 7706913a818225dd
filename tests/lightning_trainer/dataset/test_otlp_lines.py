"""A span in a collector's file is the span that the receiver would have stored; what cannot be read is named."""

import gzip
import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_trainer.dataset.sources import read_source
from lightning_trainer.errors import MalformedTelemetryError
from lightning_trainer.otlp.json_lines import read_lines
from lightning_trainer.store import SqliteStore
from lightning_trainer.types import Span, SpanEvent, SpanStatus

# A document as the specification's example has it: hex ids, 64-bit integers as text, bytes in base64.
LINE = (
    b'{"resourceSpans":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"agent"}}]},'
    b'"scopeSpans":[{"scope":{"name":"lightning.gateway","version":"1"},"spans":[{'
    b'"traceId":"5B8EFFF798038103D269B633813FC60C","spanId":"EEE19B7EC3C1B174","parentSpanId":"EEE19B7EC3C1B173",'
    b'"name":"chat","kind":2,"startTimeUnixNano":"1544712660000000000","endTimeUnixNano":"1544712661000000000",'
    b'"attributes":[{"key":"count","value":{"intValue":"7"}},{"key":"ids","value":{"bytesValue":"AQAAAA=="}},'
    b'{"key":"share","value":{"doubleValue":1}},{"key":"reasons","value":{"arrayValue":{"values":[{"stringValue":"stop"}]}}},'
    b'{"key":"map","value":{"kvlistValue":{"values":[{"key":"k","value":{"boolValue":true}}]}}},{"key":"unset","value":{}}],'
    b'"events":[{"timeUnixNano":"5","name":"e","attributes":[]}],"status":{"code":2,"message":"no"},"unknown":1}]}]}]}\n'
)


def read(*lines: bytes) -> tuple[list[Span], list[str]]:
    problems: list[str] = []
    return list(read_lines(lines, "f.jsonl", problems)), problems


def test_a_document_of_the_specification_is_read() -> None:
    (span,), problems = read(LINE)
    assert span == Span(
        trace_id="5b8efff798038103d269b633813fc60c",
        span_id="eee19b7ec3c1b174",
        parent_span_id="eee19b7ec3c1b173",
        name="chat",
        start_ns=1544712660000000000,
        end_ns=1544712661000000000,
        attributes={"count": 7, "ids": b"\x01\0\0\0", "share": 1.0, "reasons": ("stop",), "map": '{"k":true}'},
        events=(SpanEvent("e", 5, {}),),
        status=SpanStatus.ERROR,
        status_message="no",
        scope="lightning.gateway",
        resource={"service.name": "agent"},
    )
    assert problems == []


def test_a_file_that_an_editor_began_with_a_byte_order_mark_is_read() -> None:
    assert read(b"\xef\xbb\xbf" + LINE, LINE) == read(LINE, LINE)


_values = st.one_of(
    st.text(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.binary(),
    st.lists(st.text(), min_size=1).map(tuple),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1).map(tuple),
)
_attributes = st.dictionaries(st.text(min_size=1), _values, max_size=4)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.builds(
        Span,
        trace_id=st.integers(1, 2**128 - 1).map("{:032x}".format),
        span_id=st.integers(1, 2**64 - 1).map("{:016x}".format),
        parent_span_id=st.none() | st.integers(1, 2**64 - 1).map("{:016x}".format),
        name=st.text(),
        start_ns=st.integers(0, 2**63 - 1),
        end_ns=st.integers(0, 2**63 - 1),
        attributes=_attributes,
        events=st.lists(st.builds(SpanEvent, st.text(), st.integers(0, 2**63 - 1), _attributes), max_size=2).map(tuple),
        status=st.sampled_from(SpanStatus),
        status_message=st.text(),
        scope=st.text(),
        resource=_attributes,
    )
)
def test_every_span_comes_back_from_its_json(otlp_line, span: Span) -> None:
    assert read(otlp_line([span]).encode() + b"\n") == ([span], [])


def test_numbers_that_json_has_no_form_for_and_integers_as_numbers() -> None:
    document = json.loads(LINE)
    document["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"] = [
        {"key": "nan", "value": {"doubleValue": "NaN"}},
        {"key": "int", "value": {"intValue": 7}},
    ]
    (span,), _ = read(json.dumps(document).encode())
    assert math.isnan(span.attributes["nan"])  # pyright: ignore[reportArgumentType]
    assert span.attributes["int"] == 7


def test_a_last_line_that_is_cut_short_is_left_out_with_a_sentence() -> None:
    spans, (problem,) = read(LINE, LINE[:200])
    assert len(spans) == 1
    assert "line 2 ends after 200 bytes" in problem


def test_a_torn_line_in_the_middle_is_named_and_the_rest_is_read() -> None:
    spans, (problem,) = read(LINE, LINE[:200] + b"\n", LINE)
    assert len(spans) == 2
    assert "line 2 is not JSON" in problem


def test_a_span_that_cannot_be_read_does_not_take_the_others_with_it() -> None:
    spans, (problem,) = read(LINE.replace(b"EEE19B7EC3C1B174", b"EEE1"), LINE)
    assert len(spans) == 1
    assert "line 1: a span is left out" in problem


def test_a_text_that_was_cut_inside_an_emoji_is_read() -> None:
    (span,), problems = read(LINE.replace(b'"chat"', rb'"chat \ud83d"'))
    assert (span.name, problems) == ("chat ?", [])


@pytest.mark.parametrize("strange", [b'{"resourceSpans":[1]}\n', b'{"resourceSpans":[{"scopeSpans":{"a":1}}]}\n'])
def test_a_line_of_another_shape_is_named(strange: bytes) -> None:
    spans, (problem,) = read(strange, LINE)
    assert len(spans) == 1
    assert "is not a list of objects" in problem


def test_logs_and_metrics_in_the_file_are_counted() -> None:
    spans, (problem,) = read(LINE, b'{"resourceLogs":[]}\n', b'{"resourceMetrics":[]}\n')
    assert len(spans) == 1
    assert "2 lines hold logs, metrics" in problem


@pytest.mark.parametrize("strange", [b"\x0a\x12binary\n", b"{\n", b"[]\n", b'{"spans": []}\n'])
def test_another_kind_of_file_is_refused(strange: bytes) -> None:
    with pytest.raises(MalformedTelemetryError, match="not a file of OTLP JSON lines"):
        read(strange, LINE)


def test_gzip_is_known_by_its_first_bytes_and_may_break_off(tmp_path) -> None:
    path, problems = tmp_path / "traces.jsonl", []
    whole = gzip.compress(LINE * 3)
    path.write_bytes(whole)
    assert len(read_source(path, problems)) == 3
    assert problems == []
    path.write_bytes(gzip.compress(LINE * 2) + whole[:100])
    assert len(read_source(path, problems)) == 2
    assert "breaks off" in problems[0]


def test_zstd_is_refused_with_what_to_do(tmp_path) -> None:
    path = tmp_path / "traces.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd rest")
    with pytest.raises(MalformedTelemetryError, match="zstd"):
        read_source(path, [])


def test_a_file_that_is_not_there_is_one_sentence(tmp_path) -> None:
    with pytest.raises(MalformedTelemetryError, match="No such file"):
        read_source(tmp_path / "none.jsonl", [])


async def test_a_daemons_folder_gives_the_spans_of_its_store(tmp_path, two_attempts) -> None:
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        await store.append(two_attempts)
    found = read_source(tmp_path, [])
    assert {span.span_id: span for span in found} == {span.span_id: span for span in two_attempts}
    assert len(found) == len(two_attempts)


def test_a_file_is_read_as_the_store_would_have_it(tmp_path) -> None:
    """Before, a foreign span's attempt in its resource, and a root's mark in text, were lost in files alone."""
    names = {"lightning.rollout.id": "r", "lightning.attempt.id": "a"}
    span = {"traceId": "1" * 32, "spanId": "2" * 16, "name": "agent", "startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    marked = {**span, "attributes": [{"key": "lightning.rollout.root", "value": {"stringValue": "true"}}]}
    named = [{"key": name, "value": {"stringValue": value}} for name, value in names.items()]
    document = {
        "resourceSpans": [
            {"resource": {"attributes": named}, "scopeSpans": [{"scope": {"name": "spring"}, "spans": [marked]}]}
        ]
    }
    path = tmp_path / "spans.jsonl"
    path.write_text(json.dumps(document) + "\n")
    (read_in,) = read_source(path, [])
    assert read_in.attributes == {**names, "lightning.rollout.root": True}

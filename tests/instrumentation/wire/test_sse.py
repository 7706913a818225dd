"""Events come out the same however the bytes were cut, and nothing is lost between them."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightning_instrumentation.wire.sse import EventSplitter, LineSplitter, data_of, with_data

_ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
_DOCUMENT = st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3)


def _event(document, end):
    return b"event: x" + end + b"data: " + json.dumps(document).encode() + end + end


@given(st.lists(_DOCUMENT, max_size=6), _ENDS, st.lists(st.integers(0, 300), max_size=8))
def test_events_do_not_depend_on_how_the_bytes_were_cut(documents, end, cuts):
    events = [_event(document, end) for document in documents]
    stream = b"".join(events)
    at = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    splitter = EventSplitter()
    found = [event for start, stop in pairwise(at) for event in splitter.feed(stream[start:stop])]
    assert b"".join(found) + splitter.finish() == stream
    assert [json.loads(data_of(event)) for event in found] == documents


@given(_DOCUMENT, _ENDS)
def test_other_data_leaves_the_rest_of_an_event_as_it_was(document, end):
    changed = with_data(_event(document, end), b'{"a":1}')
    assert changed == b"event: x" + end + b'data: {"a":1}' + end + end


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n", b"\r\n\n"])
def test_every_form_of_an_empty_line_ends_an_event(end):
    assert EventSplitter().feed(b"data: 1" + end + b"data: 2" + end) == [b"data: 1" + end, b"data: 2" + end]


@given(st.lists(_DOCUMENT, max_size=6), st.binary(max_size=5), st.lists(st.integers(0, 300), max_size=8))
def test_lines_do_not_depend_on_how_the_bytes_were_cut(documents, last, cuts):
    lines = [json.dumps(document).encode() + b"\n" for document in documents]
    last = last.replace(b"\n", b"")
    stream = b"".join(lines) + last
    at = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    splitter = LineSplitter()
    assert [line for start, stop in pairwise(at) for line in splitter.feed(stream[start:stop])] == lines
    assert splitter.finish() == last

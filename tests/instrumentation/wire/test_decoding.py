"""An answer is read once, by us, and handed to the caller: it must be what ``json.loads`` makes of it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightning_instrumentation.wire.decoding import read_json

# A surrogate alone can be written in JSON, as an escape.
_TEXTS = st.text(st.characters(codec=None, exclude_categories=()), max_size=20)
_INTEGERS = st.integers() | st.integers(-(2**70), 2**70) | st.sampled_from((2**64 - 1, 2**64, -(2**63), -(2**63) - 1))
_DOCUMENTS = st.recursive(
    st.none() | st.booleans() | _INTEGERS | st.floats() | _TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=4),
    max_leaves=12,
)


@given(
    document=st.dictionaries(_TEXTS, _DOCUMENTS) | _DOCUMENTS,
    escaped=st.booleans(),
    spaced=st.booleans(),
    encoding=st.sampled_from(("utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")),
)
def test_a_document_is_what_json_makes_of_it(document: Any, escaped: bool, spaced: bool, encoding: str) -> None:
    separators = (", ", ": ") if spaced else (",", ":")
    written = json.dumps(document, ensure_ascii=escaped, separators=separators).encode(encoding, "surrogatepass")

    # The type of every number and the sign of every zero are in its ``repr``; NaN is not equal to itself.
    assert repr(read_json(written)) == repr(json.loads(written))


@given(
    whole=st.from_regex(r"-?(0|[1-9][0-9]{0,45})", fullmatch=True),
    fraction=st.from_regex(r"(\.[0-9]{1,45})?", fullmatch=True),
    exponent=st.from_regex(r"([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    before=st.from_regex(r"(\[?-?0\.[0-9]{15,45},)?", fullmatch=True),
)
def test_a_number_is_read_to_the_last_bit(whole: str, fraction: str, exponent: str, before: str) -> None:
    """Long fractions before a number, too: they are looked past."""
    before = before.lstrip("[")
    written = f'{{"n":[{before}{whole}{fraction}{exponent}]}}'.encode()

    assert repr(read_json(written)) == repr(json.loads(written))


@pytest.mark.parametrize(
    "written",
    [
        b'{"n":18446744073709551616}',
        b'{"n":-9223372036854775809}',
        b'{"n":0.1234567890123456789012345678901234567890123}',
        b'{"n":1e400}',
        b'{"n":NaN}',
        b'{"n":"\\ud800"}',
        b'{"n":1,"n":2}',
        b'{"n":-0}',
        b'\xef\xbb\xbf{"n":1}',
        b'{"n":' + b"[" * 900 + b"]" * 900 + b"}",
    ],
)
def test_what_the_faster_reader_refuses_or_rounds(written: bytes) -> None:
    assert repr(read_json(written)) == repr(json.loads(written))


@pytest.mark.parametrize("written", [b'{"n":01}', b'{"n":1', b'{"n":"\t"}', b'{"n":"\xff"}', b""])
def test_what_is_no_json_is_none_for_both(written: bytes) -> None:
    with pytest.raises((json.JSONDecodeError, UnicodeDecodeError)) as expected:
        json.loads(written)
    with pytest.raises(expected.type):
        read_json(written)

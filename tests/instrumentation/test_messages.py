"""Messages are the same JSON with the faster writer and without it, whatever they hold."""

import dataclasses
import datetime
import enum
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightning_instrumentation.telemetry import messages
from lightning_instrumentation.telemetry.messages import as_json

documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@dataclasses.dataclass
class Part:
    text: str


class Color(enum.Enum):
    RED = "red"


def both(value) -> tuple[str, str]:
    return as_json(value), messages.encodable(messages._encode(value))


@given(documents)
def test_both_say_the_same(document):
    quickly, slowly = both(document)
    assert json.loads(quickly) == json.loads(slowly) == document


@pytest.mark.parametrize(
    "value",
    [
        {"half": "\ud83d"},
        {1: "a", None: "b"},
        2**70,
        (1, {"a"}),
        b"bytes",
        Color.RED,
        Part("as text"),
        datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_json_has_no_form_for_becomes_the_same_text(value):
    quickly, slowly = both([value])
    assert quickly == slowly

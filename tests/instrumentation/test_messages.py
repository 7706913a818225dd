"""Messages are the same JSON with the faster writer and without it, whatever they hold."""

import dataclasses
import datetime
import enum
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightning_instrumentation.spans import messages
from lightning_instrumentation.spans.messages import as_json, input_messages

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


class Unruly:
    """Raises when it is asked for its form."""

    def model_dump(self, **_: object) -> None:
        raise LookupError("gone")


def cycle() -> dict:
    around: dict = {"name": "a"}
    around["self"] = [around]
    return around


def graph(nodes: int) -> list:
    made: list[dict] = [{"number": number} for number in range(nodes)]
    for node in made:
        node["neighbors"] = made
    return made


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({datetime.date(2026, 1, 2): "price"}, '{"2026-01-02":"price"}'),
        ({("a", 1): {2: 3}}, '{"(\'a\', 1)":{"2":3}}'),
        (cycle(), '{"name":"a","self":["<dict>"]}'),
        (graph(3)[0], None),
        (graph(40), None),
        ([Unruly()], '["<Unruly>"]'),
        ([[]] * 3 + [{b"a": [1]}], "[[],[],[],{\"b'a'\":[1]}]"),
    ],
    ids=["date", "tuple", "cycle", "graph", "large graph", "unruly", "no cycle"],
)
def test_whatever_it_holds_it_becomes_json(value, text):
    said = as_json(value)
    assert json.loads(said) is not None
    assert len(said) < 10_000_000
    assert text is None or said == text


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": None, "tool_calls": 2**31},
        {"role": "assistant", "content": None, "tool_calls": "calculator"},
        {"role": "assistant", "content": None, "tool_calls": {"id": "call_1"}},
    ],
)
def test_calls_of_an_unknown_shape_leave_the_message_as_it_came(message):
    assert input_messages([message]) == [message]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": 5}}]},
        {"role": "user", "content": [{"type": ["text"], "text": 5}, None, 7, []]},
        {"role": "tool", "tool_call_id": [], "content": [{"type": "text", "text": 5}]},
        {"role": {"a": 1}, "content": 1.5, "reasoning": [0], "refusal": 3, "name": {}},
        {"role": "assistant", "tool_calls": [None, 5, {"function": "f"}, {"function": {"arguments": "[" * 100_000}}]},
    ],
)
def test_parts_of_an_unknown_shape_are_kept_somehow(message):
    assert as_json(input_messages([message]))
